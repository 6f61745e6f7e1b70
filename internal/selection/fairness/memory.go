package fairness

import (
	"sync/atomic"
	"unsafe"
)

// Memory bounds what the accounts of all services take together. A nil Memory has no bound.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory returns a bound in bytes; 0: there is none.
func NewMemory(limit int64) *Memory {
	if limit <= 0 {
		return nil
	}
	return &Memory{limit: limit}
}

// Set says what the accounts of all services that are in use take. It takes off those that are not.
func (m *Memory) Set(bytes int64) {
	if m != nil {
		m.used.Store(bytes)
	}
}

// full reports whether another account does not fit into a part of the memory.
func (m *Memory) full(room float64) bool {
	return m != nil && float64(m.used.Load()) >= room*float64(m.limit)
}

func (m *Memory) add(bytes int64) {
	if m != nil {
		m.used.Add(bytes)
	}
}

// LimitBytes bounds the accounts of the service, with those of others. It must be called before there are any.
func (s *Service) LimitBytes(m *Memory) { s.memory = m }

// Bytes returns approximately what the accounts take.
func (s *Service) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// size is approximately what an account takes: with its name, its entry in a map, and what that leaves unused.
func (a *Account) size() int64 {
	const entry = 64
	return int64(unsafe.Sizeof(Account{})) + entry + int64(len(a.name))
}

// otherBytes is what another process's part takes, with what its list leaves unused.
const otherBytes = 2 * int64(unsafe.Sizeof(elsewhere{}))

// account counts the memory of an account that comes (1) or goes (-1).
func (c *Class) account(a *Account, change int) {
	c.accounts += change
	c.count(int64(change) * (a.size() + otherBytes*int64(len(a.others))))
}

func (c *Class) count(bytes int64) {
	c.service.bytes += bytes
	c.service.memory.add(bytes)
}
