package catalog

import "fmt"

// TrackedRecord is a worker as the slot tracker knows it.
type TrackedRecord struct {
	ID        uint64
	Scope     Scope
	BlockSize uint32 // tokens
	StartRank uint32 // first data-parallel rank
	Size      uint32 // number of ranks
}

// trackedKey identifies a worker of the slot tracker, whose ids are unique in their scope only.
type trackedKey struct {
	scope Scope
	id    uint64
}

// trackedReason is the reason why a worker of the slot tracker is incomplete. Its
// lifecycle is Incomplete because the contract has reasons for that state only.
const trackedReason = "registered through the slot tracker: its load is tracked, it is never selected"

// BlockSizeError refuses a worker of the slot tracker whose block size differs
// from that of the workers in its scope.
type BlockSizeError struct {
	Scope               Scope
	Existing, Requested uint32 // tokens
}

// Error gives the text of the contract (dynamo-kv-router 1.3.1).
func (e *BlockSizeError) Error() string {
	return fmt.Sprintf("block_size mismatch for model=%s tenant=%s: existing=%d, requested=%d",
		e.Scope.Model, e.Scope.Tenant, e.Existing, e.Requested)
}

// ExistsError refuses a worker because its id is taken in the scope: for a
// worker of the selection contract by one of the slot tracker, for a worker of
// the slot tracker by any.
type ExistsError struct {
	ID    uint64
	Scope Scope
}

// Error gives the text of the contract (dynamo-kv-router 1.3.1).
func (e *ExistsError) Error() string {
	return fmt.Sprintf("worker %d already registered for model=%s tenant=%s", e.ID, e.Scope.Model, e.Scope.Tenant)
}

// NotTrackedError is ErrNotFound for a worker of the slot tracker.
type NotTrackedError struct {
	ID    uint64
	Scope Scope
}

// Error gives the text of the contract (dynamo-kv-router 1.3.1).
func (e *NotTrackedError) Error() string {
	sc := e.Scope.Short()
	return fmt.Sprintf("worker %d not found for model=%s tenant=%s", e.ID, sc.Model, sc.Tenant)
}

// Unwrap returns ErrNotFound.
func (*NotTrackedError) Unwrap() error { return ErrNotFound }

// check returns an error for a record that can never be accepted, with the
// texts of the contract; that of the maximum is of dynamo-kv-router 1.6.1.
func (r *TrackedRecord) check() error {
	switch {
	case r.BlockSize == 0:
		return &InvalidError{"block_size must be greater than 0"}
	case r.Size == 0:
		return &InvalidError{"dp_size must be greater than 0"}
	case r.Size > MaxRanks:
		return &InvalidError{fmt.Sprintf("dp_size %d exceeds the maximum %d", r.Size, MaxRanks)}
	case uint64(r.StartRank)+uint64(r.Size) > 1<<32-1: // so that the end is a u32, too
		return &InvalidError{fmt.Sprintf("dp range overflows u32: start=%d size=%d", r.StartRank, r.Size)}
	}
	return r.Scope.check()
}

// attachment returns what the worker contributes, without slots.
func (r *TrackedRecord) attachment() *Attachment {
	a := &Attachment{Scope: r.Scope, Worker: r.ID, BlockSize: r.BlockSize, Tracked: true}
	ranks := make([]AttachedRank, r.Size)
	for i := range ranks {
		ranks[i] = AttachedRank{DP: r.StartRank + uint32(i), Candidate: true}
	}
	a.setRanks(ranks)
	return a
}

// PutTracked registers a worker through the slot tracker: its ranks carry load
// and are never chosen (decision S4). Errors, checked in this order, are
// ErrShuttingDown, *InvalidError, *BlockSizeError, *ExistsError, *LimitError and
// those of the Reconciler; then nothing has changed.
func (c *Catalog) PutTracked(r TrackedRecord) (*Worker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrShuttingDown
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	key := trackedKey{r.Scope, r.ID}
	if s := c.mu.scopes[r.Scope]; s != nil && len(s.members) > 0 && s.blockSize != r.BlockSize {
		return nil, &BlockSizeError{Scope: r.Scope, Existing: s.blockSize, Requested: r.BlockSize}
	}
	if other := c.mu.members[r.ID]; other != nil && other.worker.Scope == r.Scope || c.mu.tracked[key] != nil {
		return nil, &ExistsError{ID: r.ID, Scope: r.Scope}
	}
	record := Record{ID: r.ID, Scope: r.Scope, BlockSize: &r.BlockSize, StartRank: &r.StartRank, Size: &r.Size}
	if err := c.checkRoomForLocked(&record, nil); err != nil {
		return nil, err
	}
	m, a := new(member), r.attachment()
	c.releaseWorkerLocked(r.Scope, r.ID)
	c.releaseUnfitLocked(a)
	if err := c.changeLocked(m, a); err != nil {
		return nil, err
	}
	c.mu.tracked[key] = m
	c.setWorkerLocked(m, &Worker{
		Record:    record,
		Lifecycle: Incomplete,
		Reasons:   []string{trackedReason},
		Tracked:   true,
	})
	c.retryBlockedLocked()
	c.publishLocked()
	return m.worker, nil
}

// DeleteTracked removes a worker of the slot tracker. It works after Close, too.
// The error is ErrNotFound.
func (c *Catalog) DeleteTracked(sc Scope, id uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := trackedKey{sc, id}
	m := c.mu.tracked[key]
	if m == nil {
		return &NotTrackedError{ID: key.id, Scope: key.scope}
	}
	delete(c.mu.tracked, key)
	c.removeLocked(m)
	return nil
}
