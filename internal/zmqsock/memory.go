package zmqsock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/zmtp"
)

const (
	// largestShare divides an account: one message may take at most a quarter of it.
	largestShare = 4
	// smallMessage is the size in bytes up to which messages may use the last eighth of an
	// account; it is reserved for them.
	smallMessage = 64 << 10
	// A message that finds no room tries again memoryTries times, memoryWait apart. Halfway
	// through, the largest partly read message is dropped: inboxes are soon applied, but a
	// sender may stop inside a message for good.
	memoryWait  = 5 * time.Millisecond
	memoryTries = 40
)

// memory is the reservation for the message that a connection is reading. It implements
// zmtp.Memory.
type memory struct {
	ctx     context.Context
	conn    net.Conn
	account *budget.Account
	partial *partials
	held    atomic.Int64
	shed    atomic.Bool // the connection was closed to make room
}

// partials has the messages that are being read.
type partials struct {
	// mu guards all.
	mu  sync.Mutex
	all map[*memory]struct{}
}

func (p *partials) open(ctx context.Context, conn net.Conn, account *budget.Account) *memory {
	m := &memory{ctx: ctx, conn: conn, account: account, partial: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = make(map[*memory]struct{})
	}
	p.all[m] = struct{}{}
	return m
}

func (m *memory) close() {
	m.partial.mu.Lock()
	defer m.partial.mu.Unlock()
	delete(m.partial.all, m)
}

// largest returns the bound of a message.
func (m *memory) largest(limit int64) int64 {
	if share := m.account.Limit() / largestShare; share > 0 {
		return min(limit, share)
	}
	return limit
}

// Reserve implements zmtp.Memory.
func (m *memory) Reserve(n, held int64) bool {
	for try := range memoryTries {
		if m.fits(n, held) {
			m.held.Store(held + n)
			return true
		}
		if try == memoryTries/2 {
			m.partial.shedLargest(m.account)
		}
		select {
		case <-m.ctx.Done():
			return false
		case <-time.After(memoryWait):
		}
	}
	return false
}

func (m *memory) fits(n, held int64) bool {
	limit := m.account.Limit()
	if held+n > smallMessage && limit > 0 && m.account.Used()+n > limit-limit/8 {
		return false
	}
	return m.account.Reserve(n)
}

// Release implements zmtp.Memory.
func (m *memory) Release(n int64) {
	m.held.Store(0)
	m.account.Release(n)
}

// ReserveBuffer implements zmtp.Memory: buffers take the first half of an account only.
func (m *memory) ReserveBuffer(n int64) bool {
	limit := m.account.Limit()
	return (limit == 0 || m.account.Used()+n <= limit/2) && m.account.TryReserve(n)
}

// ReleaseBuffer implements zmtp.Memory.
func (m *memory) ReleaseBuffer(n int64) { m.account.Release(n) }

// handOver marks that the message has been read: its receiver releases its bytes.
func (m *memory) handOver() { m.held.Store(0) }

// blame returns a more precise cause of err, if the connection was shed.
func (m *memory) blame(err error) error {
	if m.shed.Load() && !errors.As(err, new(*zmtp.Error)) {
		return zmtp.Refuse(zmtp.NoMemory, "the largest message that was being read")
	}
	return err
}

// shedLargest closes the connection whose partly read message holds the most of an account.
func (p *partials) shedLargest(account *budget.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var largest *memory
	most := int64(smallMessage)
	for m := range p.all {
		if held := m.held.Load(); m.account == account && held > most {
			largest, most = m, held
		}
	}
	if largest != nil {
		largest.shed.Store(true)
		_ = largest.conn.Close()
	}
}
