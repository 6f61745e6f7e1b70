package httpapi

import (
	"container/list"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/semaphore"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/contract"
)

// Memory is what the requests of all listeners draw from. A nil Memory has no
// limits.
type Memory struct {
	requests holders // bodies up to budget.SmallBody
	bodies   holders // larger ones
	answers  holders // larger than budget.SmallBody

	// serving bounds what is made of large bodies, and with it how many are served at
	// a time: in the order in which they came.
	serving *budget.Account
	gate    *semaphore.Weighted
	width   int64 // of gate, bytes
	least   int64 // bytes of gate that one request takes
}

// NewMemory returns what requests draw from the accounts of a budget; nil for nil.
func NewMemory(b *budget.Budget) *Memory {
	if b == nil {
		return nil
	}
	m := &Memory{serving: b.Account(budget.Serving)}
	m.requests = holders{account: b.Account(budget.Requests), patience: 250 * time.Millisecond}
	m.bodies = holders{account: b.Account(budget.Bodies), patience: time.Second}
	m.answers = holders{account: b.Account(budget.Answers), patience: time.Second}
	// For two processors, one body of the largest or four of less at a time: others must
	// not wait long for a processor.
	pairs := int64(max(1, runtime.GOMAXPROCS(0)/2))
	m.width = min(m.serving.Limit(), pairs*maxBody*servingFactor)
	m.least = m.width / (4 * pairs)
	m.gate = semaphore.NewWeighted(m.width)
	return m
}

const (
	// untracked is the part of a body in bytes that belongs to its connection and to
	// no account: as much as the buffers that net/http has for it.
	untracked = 4 << 10
	// servingFactor times its length is what serving a large body may take: token ids
	// of one digit are two bytes in the text, four in memory, and twice eight as the
	// hashes of blocks of one token.
	servingFactor = 10
	// holdersPatience is how long a request waits for memory that others hold.
	holdersPatience = 2 * time.Second
	// servingPatience is how long a large body waits for its turn to be served.
	servingPatience = 5 * time.Second
)

// errNoMemory refuses what does not fit into an account.
func errNoMemory(a *budget.Account) error {
	return &requestError{
		status: http.StatusServiceUnavailable, reason: "no_memory", limit: contract.LimitMemory,
		text: fmt.Sprintf("no memory left for this request: account %s of --max-memory is full (limit=%d bytes)", a.Name(), a.Limit()),
	}
}

// holders are the requests that share an account while their clients send or read.
// When it is full the client that holds its part for longest is cut off: one that
// sends or reads at the pace of a network is done before.
type holders struct {
	account  *budget.Account
	patience time.Duration // for which a client may hold its part although others need it
	waiting  atomic.Int32  // requests that wait for memory

	mu    sync.Mutex    // guards what follows and holder.cutOff
	slow  list.List     // of *holder, the first since longest
	freed chan struct{} // closed when memory comes back; nil: nobody waits for that
}

// holder is a client that is waited for while its request holds memory.
type holder struct {
	since   time.Time
	element *list.Element // nil: not in the list
	cut     func()        // ends the wait for the client; may be called from any goroutine
	cutOff  bool          // cut has been called
}

// reserve takes n bytes for a request. If they do not fit, it waits for what
// clients that are cut off give back. h is the request's own entry.
func (s *holders) reserve(ctx context.Context, n int64, h *holder) error {
	if s.account.TryReserve(n) {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	const look = 50 * time.Millisecond // for clients that have become slow
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	for end := time.Now().Add(holdersPatience); ; {
		s.mu.Lock()
		if h.cutOff {
			s.mu.Unlock()
			break
		}
		if s.account.TryReserve(n) {
			s.mu.Unlock()
			return nil
		}
		s.cutSlowestLocked()
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ticks.C:
			if time.Now().Before(end) {
				continue
			}
			s.account.CountRefusal()
			return errNoMemory(s.account)
		case <-ctx.Done():
			return errClientGone
		}
	}
	s.account.CountRefusal()
	return errNoMemory(s.account)
}

// cutSlowestLocked cuts the client off that holds its part for longest, one at a
// time: its memory comes back at once.
func (s *holders) cutSlowestLocked() {
	front := s.slow.Front()
	if front == nil {
		return
	}
	if h := front.Value.(*holder); !h.cutOff && time.Since(h.since) >= s.patience {
		h.cutOff = true
		h.cut()
	}
}

func (s *holders) release(n int64) {
	s.account.Release(n)
	if s.waiting.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// enter lists a client that is waited for from now on.
func (s *holders) enter(h *holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.since.IsZero() {
		h.since = time.Now()
	}
	h.element = s.slow.PushBack(h)
}

// leave undoes enter and reports whether the client was cut off. After it cut is not
// called any more.
func (s *holders) leave(h *holder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.element != nil {
		s.slow.Remove(h.element)
		h.element = nil
	}
	return h.cutOff
}

// allowance is what one request holds of the accounts. Its zero value holds nothing.
type allowance struct {
	memory *Memory
	pool   *holders // that held was taken from
	held   int64
	turn   int64 // of Memory.gate
	holder holder
}

// cover makes the request hold at least n bytes for a body, which is said to be large
// or not. If the client has more to send, it may be cut off from now on.
func (a *allowance) cover(c *gin.Context, n int, large, more bool) error {
	if a.memory == nil || n <= untracked || int64(n) <= a.held {
		return nil
	}
	want := int64(2 * untracked)
	for want < int64(n) {
		want *= 2
	}
	pool, held := &a.memory.requests, a.held
	if large || want > budget.SmallBody {
		pool = &a.memory.bodies
		want = min(want, max(int64(n), pool.account.Limit()))
	}
	if pool != a.pool { // the body is not small any more
		if a.leave() {
			return errNoMemory(a.pool.account)
		}
		held = 0
	}
	if err := pool.reserve(c.Request.Context(), want-held, &a.holder); err != nil {
		return err
	}
	if pool != a.pool {
		if a.pool != nil {
			a.pool.release(a.held)
		}
		if a.pool = pool; more {
			a.holder.cut = func() { setReadDeadline(c, longAgo) }
			pool.enter(&a.holder)
		}
	}
	a.held = want
	return nil
}

// longAgo is a deadline that ends a read or a write at once.
var longAgo = time.Unix(1, 0)

// errNeverFits refuses a body that is longer than all bodies together may be.
func errNeverFits(a *budget.Account) error {
	return &requestError{
		status: http.StatusRequestEntityTooLarge, reason: "body_too_large", limit: contract.LimitMemory,
		text: fmt.Sprintf("the request body does not fit into account %s of --max-memory (limit=%d bytes)", a.Name(), a.Limit()),
	}
}

// fits refuses a body whose claimed length is more than can ever be held.
func (a *allowance) fits(claimed int64) error {
	if a.memory == nil || claimed <= a.memory.bodies.account.Limit() {
		return nil
	}
	return errNeverFits(a.memory.bodies.account)
}

// leave says that the client is not waited for any more, and reports whether it was
// cut off before.
func (a *allowance) leave() (cutOff bool) {
	if a.holder.element == nil {
		return false
	}
	return a.pool.leave(&a.holder)
}

// serve waits for the turn of a request whose body and answer together take about n
// bytes; small ones need none.
func (a *allowance) serve(ctx context.Context, n int64) error {
	m := a.memory
	if m == nil || n <= budget.SmallBody {
		return nil
	}
	n = min(max(n, m.least), m.width)
	if !m.gate.TryAcquire(n) {
		soon, cancel := context.WithTimeout(ctx, servingPatience)
		defer cancel()
		if m.gate.Acquire(soon, n) != nil {
			if ctx.Err() != nil {
				return errClientGone
			}
			m.serving.CountRefusal()
			return errNoMemory(m.serving)
		}
	}
	m.serving.Reserve(n) // fits: gate has no more
	a.turn = n
	return nil
}

// answer holds n bytes of an answer in place of what the request held, until close.
// A client that does not read may be cut off.
func (a *allowance) answer(ctx context.Context, w http.ResponseWriter, n int) error {
	if a.turn > 0 && n > autoLength || n > budget.SmallBody {
		a.close() // nothing is kept of the request
	}
	if a.memory == nil || n <= budget.SmallBody {
		return nil
	}
	pool := &a.memory.answers
	want := min(int64(n), pool.account.Limit()) // a longer one goes alone
	if err := pool.reserve(ctx, want, &a.holder); err != nil {
		return err
	}
	a.pool, a.held = pool, want
	a.holder.cut = func() { _ = http.NewResponseController(w).SetWriteDeadline(longAgo) }
	pool.enter(&a.holder)
	return nil
}

// close gives everything back. It may be called twice.
func (a *allowance) close() {
	if a.pool == nil && a.turn == 0 {
		return
	}
	a.leave()
	if a.pool != nil {
		a.pool.release(a.held)
	}
	if a.turn > 0 {
		a.memory.serving.Release(a.turn)
		a.memory.gate.Release(a.turn)
	}
	*a = allowance{memory: a.memory}
}
