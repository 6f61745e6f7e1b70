package zmqsock

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
	"github.com/select-service/select-service/pkg/memory"
)

const (
	// largestShare divides an account: one message may take at most a quarter of it.
	largestShare = 4
	// smallMessage is the size in bytes up to which messages may use the last eighth of an
	// account; it is reserved for them.
	smallMessage = 64 << 10
	// A message that finds no room tries again memoryTries times, memoryWait apart: inboxes are
	// soon applied. But senders may stop inside messages for good. So connections whose messages
	// have been partly read for longer than stalledFor are closed, the most costly first (bytes
	// times age), until 1/roomShare of the account is free. That happens at most once in roomEvery.
	memoryWait  = 5 * time.Millisecond
	memoryTries = 40
	stalledFor  = 100 * time.Millisecond
	roomShare   = 4
	roomEvery   = 10 * time.Millisecond
)

// connMemory is the reservation for the message that a connection is reading. It implements
// zmtp.Memory.
type connMemory struct {
	ctx     context.Context
	conn    net.Conn
	account *memory.Account
	partial *partials
	held    atomic.Int64
	begun   atomic.Int64 // when the message first asked, in ns since 1970
	shed    atomic.Bool  // the connection was closed to make room
}

// partials has the messages that are being read.
type partials struct {
	// mu guards what follows.
	mu     sync.Mutex
	all    map[*connMemory]struct{}
	roomAt time.Time // when room was made last
}

func (p *partials) open(ctx context.Context, conn net.Conn, account *memory.Account) *connMemory {
	m := &connMemory{ctx: ctx, conn: conn, account: account, partial: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = make(map[*connMemory]struct{})
	}
	p.all[m] = struct{}{}
	return m
}

func (m *connMemory) close() {
	m.partial.mu.Lock()
	defer m.partial.mu.Unlock()
	delete(m.partial.all, m)
}

// largest returns the bound of a message.
func (m *connMemory) largest(limit int64) int64 {
	if share := m.account.Limit() / largestShare; share > 0 {
		return min(limit, share)
	}
	return limit
}

// Reserve implements zmtp.Memory.
func (m *connMemory) Reserve(n, held, whole int64) bool {
	if held == 0 {
		m.begun.Store(time.Now().UnixNano())
	}
	for range memoryTries {
		if m.fits(n, held+n > smallMessage || whole > smallMessage) {
			m.held.Store(held + n)
			return true
		}
		m.partial.makeRoom(m, time.Now())
		select {
		case <-m.ctx.Done():
			return false
		case <-time.After(memoryWait):
		}
	}
	return false
}

func (m *connMemory) fits(n int64, large bool) bool {
	limit := m.account.Limit()
	if large && limit > 0 && m.account.Used()+n > limit-limit/8 {
		return false
	}
	return m.account.Reserve(n)
}

// Release implements zmtp.Memory.
func (m *connMemory) Release(n int64) {
	m.held.Store(0)
	m.account.Release(n)
}

// ReserveBuffer implements zmtp.Memory: buffers take the first half of an account only.
func (m *connMemory) ReserveBuffer(n int64) bool {
	limit := m.account.Limit()
	return (limit == 0 || m.account.Used()+n <= limit/2) && m.account.TryReserve(n)
}

// ReleaseBuffer implements zmtp.Memory.
func (m *connMemory) ReleaseBuffer(n int64) { m.account.Release(n) }

// handOver marks that the message has been read: its receiver releases its bytes.
func (m *connMemory) handOver() { m.held.Store(0) }

// explain returns a more precise cause of err, if the connection was shed.
func (m *connMemory) explain(err error) error {
	if m.shed.Load() && !errors.As(err, new(*zmtp.Error)) {
		return zmtp.Refuse(zmtp.NoMemory, "a message that did not end made room for others")
	}
	return err
}

// makeRoom closes connections whose partly read messages have long held memory of the account of
// one.
func (p *partials) makeRoom(one *connMemory, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.roomAt) < roomEvery {
		return
	}
	p.roomAt = now
	latest := now.Add(-stalledFor).UnixNano()
	type stalled struct {
		*connMemory
		held int64
		cost float64
	}
	var found []stalled
	for m := range p.all {
		held, begun := m.held.Load(), m.begun.Load()
		if m.account == one.account && m != one && held > 0 && begun <= latest && !m.shed.Load() {
			found = append(found, stalled{m, held, float64(held) * float64(now.UnixNano()-begun)})
		}
	}
	slices.SortFunc(found, func(a, b stalled) int { return cmp.Compare(b.cost, a.cost) })
	missing := one.account.Limit() / roomShare
	for _, m := range found {
		if missing <= 0 {
			return
		}
		missing -= m.held
		m.shed.Store(true)
		_ = m.conn.Close()
	}
}
