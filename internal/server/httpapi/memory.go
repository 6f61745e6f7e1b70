package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/memory"
)

// Memory is the memory that the requests of all listeners share. A nil Memory has no limits.
type Memory struct {
	requests *memory.Limiter // bodies and answers up to memory.SmallBody
	bodies   *memory.Limiter // larger bodies
	answers  *memory.Limiter // answers above memory.SmallBody
	waiting  *memory.Account // the rest of batches while one of their requests waits

	// serving accounts for what large bodies are parsed into. gate bounds with it how many are
	// served at a time, in order of arrival.
	serving *memory.Account
	gate    *semaphore.Weighted
	width   int64 // capacity of gate in bytes
	least   int64 // bytes of gate that one request takes

	// explaining bounds how many explanations are made at a time. They are long where there
	// are many ranks, and their memory is reserved in answers only when they are written.
	explaining *semaphore.Weighted
	// building bounds how many long lists are made at a time, until they have their memory in answers.
	building *semaphore.Weighted

	stopping <-chan struct{}

	scanned *bodyscan.Cache // see NewMemory
}

// NewScanned returns a cache of token ids. It takes at most size bytes, outside the collector's heap,
// and counts them in the account, which may be nil. It takes no more than four fifths of the account,
// because a cache fills, and a full account is reported to operators. It is nil if that is too little
// for a cache.
func NewScanned(size int64, account *memory.Account) *bodyscan.Cache {
	if account != nil {
		size = min(size, account.Limit()/5*4)
	}
	mem := new(offheap.Memory)
	c := bodyscan.NewCache(size, func(text, ids int, bytes int64) ([]byte, []uint32) {
		account.Add(bytes)
		return offheap.Make[byte](mem, text), offheap.Make[uint32](mem, ids)
	})
	if c != nil {
		runtime.AddCleanup(c, (*offheap.Memory).Close, mem)
	}
	return c
}

// NewMemory returns the memory of requests, from the accounts of a budget; nil for nil.
// stopping is closed when the service stops; nil: never. scanned has the token ids of prompts that were
// read before; nil: there is no such cache.
func NewMemory(b *memory.Budget, stopping <-chan struct{}, scanned *bodyscan.Cache) *Memory {
	if b == nil {
		return nil
	}
	m := &Memory{
		requests: b.Account(memory.Requests).Limiter(), bodies: b.Account(memory.Bodies).Limiter(), answers: b.Account(memory.Answers).Limiter(),
		serving: b.Account(memory.Serving), waiting: b.Account(memory.Waiting), stopping: stopping, scanned: scanned,
	}
	// Per two processors, one body of maximal size or four smaller ones at a time: other
	// requests must not wait long for a processor.
	pairs := int64(max(1, runtime.GOMAXPROCS(0)/2))
	m.width = min(m.serving.Limit(), pairs*maxBody*servingFactor)
	m.least = m.width / (4 * pairs)
	m.gate = semaphore.NewWeighted(m.width)
	m.explaining = semaphore.NewWeighted(4 * pairs)
	m.building = semaphore.NewWeighted(maxBuilding)
	return m
}

const (
	// servingFactor times the length of a large body is the memory that serving it may take. A
	// token id of one digit takes two bytes of text, four in memory, and three times eight for the
	// hashes of a block of two tokens that is booked.
	servingFactor = 10
	// packedFactor is servingFactor for msgpack, where a token id takes one byte, and so does
	// the nil of a block without multimodal objects.
	packedFactor = 24
	// While others need the memory, a client may take sendPatience for the next progressBytes of a
	// small body, and largePatience for those of a larger one or for a whole answer.
	sendPatience  = 50 * time.Millisecond
	largePatience = 250 * time.Millisecond
	// memoryPatience is how long a request waits for memory that other requests have. Clients of the gateway, which
	// shares the accounts, may keep theirs for 2 seconds after they have stalled.
	memoryPatience = 3 * time.Second
	// maxBuilding is how many lists are made at a time whose memory is not reserved yet. It is small because a
	// list of all workers may have tens of MiB, and making one only takes processor time.
	maxBuilding = 2
	// maxBuilds is how often one list is made at most.
	maxBuilds = 3
	// servingPatience is how long a large body waits for its turn to be served.
	servingPatience = 5 * time.Second
)

// errNoMemory refuses a request that does not fit into an account.
func errNoMemory(a *memory.Account) error {
	return &requestError{
		status: http.StatusServiceUnavailable, reason: "no_memory", limit: contract.LimitMemory,
		text: fmt.Sprintf("no memory left for this request: account %s of --max-memory is full (limit=%d bytes)", a.Name(), a.Limit()),
	}
}

// allowance is the part of the accounts that one request has. Its zero value has nothing.
type allowance struct {
	memory  *Memory
	body    memory.Token
	answer  memory.Token
	client  http.ResponseWriter // who is waited for, while body or answer is lent
	reads   bool                // the client is to read, not to send
	turn    int64               // bytes of Memory.gate and Memory.serving
	waiting int64               // bytes of Memory.waiting

	explains bool // it has one of Memory.explaining
}

// CutOff implements memory.Client: it ends the read or the write that waits for the client.
func (a *allowance) CutOff() {
	client := http.NewResponseController(a.client)
	if a.reads {
		_ = client.SetWriteDeadline(longAgo)
	} else {
		_ = client.SetReadDeadline(longAgo)
	}
}

// resize makes a token have n bytes of a limiter, and waits for other requests to release theirs. The errors are
// errNoMemory, also for a client that is cut off, and errClientGone.
func resize(ctx context.Context, from *memory.Limiter, t *memory.Token, n int64) error {
	switch err := from.Resize(ctx, t, n, memoryPatience); {
	case err == nil:
		return nil
	case errors.Is(err, memory.ErrFull):
		return errNoMemory(from.Account())
	}
	return errClientGone
}

// longAgo is a deadline that ends a read or a write at once.
var longAgo = time.Unix(1, 0)

// errNeverFits refuses a body that is longer than the whole account of bodies.
func errNeverFits(a *memory.Account) error {
	return &requestError{
		status: http.StatusRequestEntityTooLarge, reason: "body_too_large", limit: contract.LimitMemory,
		text: fmt.Sprintf("the request body does not fit into account %s of --max-memory (limit=%d bytes)", a.Name(), a.Limit()),
	}
}

// fits refuses a body whose announced length is more than the account can ever hold.
func (a *allowance) fits(claimed int64) error {
	if a.memory == nil || claimed <= a.memory.bodies.Account().Limit() {
		return nil
	}
	return errNeverFits(a.memory.bodies.Account())
}

// servingBytes is the approximate memory to serve a body of n bytes.
func servingBytes(format bodyscan.Format, n int) int64 {
	if format == bodyscan.Msgpack {
		return packedFactor * int64(n)
	}
	return servingFactor * int64(n)
}

// serve waits for the turn of a request that takes about n bytes while it is served. Small
// requests need no turn, and a request that has its turn keeps it.
func (a *allowance) serve(ctx context.Context, n int64) error {
	m := a.memory
	if m == nil || a.turn > 0 || n <= servingFactor*memory.SmallBody {
		return nil
	}
	n = min(max(n, m.least), m.width)
	if err := acquire(ctx, m.gate, n, m.serving); err != nil {
		return err
	}
	if !m.serving.Reserve(n) { // gate bounds our own part, but the gateway uses the account too
		m.gate.Release(n)
		return errNoMemory(m.serving)
	}
	a.turn = n
	return nil
}

// acquire waits for n of a semaphore that bounds the work beside an account, at most for
// servingPatience.
func acquire(ctx context.Context, turns *semaphore.Weighted, n int64, account *memory.Account) error {
	if turns.TryAcquire(n) {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, servingPatience)
	defer cancel()
	switch {
	case turns.Acquire(soon, n) == nil:
		return nil
	case ctx.Err() != nil:
		return errClientGone
	}
	account.CountRefusal()
	return errNoMemory(account)
}

// explain waits until an explanation may be made. It may be made until explained is called.
func (a *allowance) explain(ctx context.Context) error {
	if a.memory == nil || a.explains {
		return nil
	}
	if err := acquire(ctx, a.memory.explaining, 1, a.memory.answers.Account()); err != nil {
		return err
	}
	a.explains = true
	return nil
}

// explained lets the next explanation be made. It may be called twice.
func (a *allowance) explained() {
	if a.explains {
		a.explains = false
		a.memory.explaining.Release(1)
	}
}

// build has an answer appended to out, and reserves its memory until close. Its length is known only when it is
// made: guess bytes are reserved before, and if the answer is longer and the rest is not free, it is dropped,
// and made again once its memory is reserved. So no request holds a long answer while it waits. The use must
// be one that changes nothing.
func (a *allowance) build(ctx context.Context, guess int64, out []byte, use func(out []byte) (int, []byte, error)) (status int, answer []byte, err error) {
	if a.memory == nil {
		return use(out[:0])
	}
	for range maxBuilds {
		if err := a.expect(ctx, guess); err != nil {
			return 0, out[:0], err
		}
		if status, out, err = a.buildOnce(ctx, out[:0], use); err != nil || a.covers(int64(len(out))) {
			return status, out, err
		}
		guess, out = int64(len(out)), nil
	}
	a.memory.answers.Account().CountRefusal() // it grows faster than it can be made
	return 0, nil, errNoMemory(a.memory.answers.Account())
}

// buildOnce calls use in its turn, and reserves the memory of its answer if that is free.
func (a *allowance) buildOnce(ctx context.Context, out []byte, use func(out []byte) (int, []byte, error)) (int, []byte, error) {
	if err := acquire(ctx, a.memory.building, 1, a.memory.answers.Account()); err != nil {
		return 0, out, err
	}
	defer a.memory.building.Release(1)
	status, out, err := use(out)
	if from, n := a.wants(int64(len(out))); err == nil && n > 0 && (a.answer.Of() == nil || a.answer.Of() == from) {
		from.Try(&a.answer, n-a.answer.Bytes())
	}
	return status, out, err
}

// covers reports whether what is reserved is enough for an answer of n bytes.
func (a *allowance) covers(n int64) bool {
	_, wanted := a.wants(n)
	return wanted == 0
}

// wants returns how many bytes in all, and of which limiter, have to be reserved for an answer of n bytes; 0 if what
// is reserved is enough. Short answers need none, and small ones use the memory of the body, if it has as much. An
// answer longer than the whole account gets all of it.
func (a *allowance) wants(n int64) (from *memory.Limiter, bytes int64) {
	m := a.memory
	if m == nil || n <= untracked || n <= memory.SmallBody && n <= a.body.Bytes() {
		return nil, 0
	}
	if from = m.answers; n <= memory.SmallBody {
		from = m.requests
	}
	if bytes = min(n, from.Account().Limit()); bytes <= a.answer.Bytes() {
		return nil, 0
	}
	return from, bytes
}

// expect reserves n bytes for an answer before it is written, and waits for them.
func (a *allowance) expect(ctx context.Context, n int64) error {
	from, n := a.wants(n)
	if n == 0 {
		return nil
	}
	return resize(ctx, from, &a.answer, n)
}

// send reserves an answer of n bytes until close, in place of the memory of the request. Until
// sent is called, a client that does not read may be cut off.
func (a *allowance) send(ctx context.Context, w http.ResponseWriter, n int) error {
	if a.turn > 0 && n > autoLength || n > memory.SmallBody {
		a.closeRequest() // the request's memory is no longer needed
	}
	if n <= untracked || n <= memory.SmallBody && a.answer.Bytes() > memory.SmallBody {
		a.answer.Release()
	}
	err := a.expect(ctx, int64(n))
	a.explained()
	if err != nil || n <= untracked {
		return err
	}
	a.client, a.reads = w, true
	a.body.Lend(a, sendPatience)
	patience := largePatience
	if n <= memory.SmallBody {
		patience = sendPatience
	}
	a.answer.Lend(a, patience)
	return nil
}

// sent marks that the answer is written, or that its client was cut off.
func (a *allowance) sent(w http.ResponseWriter) {
	cutOff := a.answer.Reclaim()
	if a.body.Reclaim() || cutOff { // perhaps only after everything was written
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
}

// closeRequest releases the memory of the request, but not of its answer.
func (a *allowance) closeRequest() {
	a.body.Release()
	a.releaseTurn()
	if a.waiting > 0 {
		a.memory.waiting.Release(a.waiting)
		a.waiting = 0
	}
}

// releaseTurn ends the turn of a large body, if it has one.
func (a *allowance) releaseTurn() {
	if a.turn > 0 {
		a.memory.serving.Release(a.turn)
		a.memory.gate.Release(a.turn)
		a.turn = 0
	}
}

// close releases everything. Further calls do nothing.
func (a *allowance) close() {
	a.closeRequest()
	a.explained()
	a.answer.Release()
	a.client, a.reads = nil, false
}
