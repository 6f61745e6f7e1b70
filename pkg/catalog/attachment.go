package catalog

import (
	"cmp"
	"slices"
)

// Reconciler applies changes of attachments to the index, the ledger and the
// event streams.
//
// before is the attachment in force, nil if there is none; after is the new
// one, nil if there is to be none. Both have the same scope, block size and
// eagle flag: a worker that moves, or changes one of these, is detached first
// (after is nil) and then attached (before is nil). A rank in both keeps its
// slot and its blocks, and its reservations if it is a candidate in both. A
// stream that is in both unchanged keeps its cursor.
//
// When Reconcile returns, nothing may use the slots of lost ranks any more: the
// catalog will assign them to other ranks. An error means that before is still
// in force (nothing, if it was nil), and becomes the worker's reason. Removing
// cannot fail: the error of a call in which after adds nothing is ignored.
//
// Calls are made one at a time, under the catalog's lock, in the order of the
// changes. They must not call methods of the catalog that change it.
// Attachments are immutable and may be kept.
type Reconciler interface {
	Reconcile(before, after *Attachment) error
	// ReserveSlot reports that a rank that is not attached now has a slot; see
	// Catalog.ReserveSlot. If the worker is later attached with that slot, ReleaseSlot is
	// not called.
	ReserveSlot(sc Scope, blockSize uint32, r Rank, slot uint32)
	// ReleaseSlot reports that such a rank loses its slot. When it returns, nothing
	// may use the slot any more.
	ReleaseSlot(sc Scope, r Rank, slot uint32)
}

// Attachment is what one worker contributes to its scope.
type Attachment struct {
	Scope     Scope
	Worker    uint64 // id
	BlockSize uint32 // tokens
	Eagle     bool   // blocks look one token ahead: hashing.Layout.Eagle
	// Tracked: registered through the slot tracker. Its ranks carry load and
	// nothing else: no streams, no blocks, never chosen.
	Tracked bool
	Streams []Stream // by data-parallel rank; empty when KV events are off
	// Loads are the load streams, by data-parallel rank, of ranks that are candidates.
	Loads []LoadStream
	// Pages are the pages of metrics from which loads of candidates are read.
	Pages []LoadPage

	// runs has the ranks, by data-parallel rank. Runs save memory: a worker may have
	// thousands of ranks, most of them never used.
	runs []rankRun
}

// rankRun is n consecutive ranks with consecutive slots, either all candidates or none.
type rankRun struct {
	dp, slot, n uint32
	candidate   bool
}

// Ranks returns a new list of the ranks, by data-parallel rank.
func (a *Attachment) Ranks() []AttachedRank {
	n := 0
	for _, r := range a.runs {
		n += int(r.n)
	}
	ranks := make([]AttachedRank, 0, n)
	for _, r := range a.runs {
		for i := range r.n {
			ranks = append(ranks, AttachedRank{DP: r.dp + i, Slot: r.slot + i, Candidate: r.candidate})
		}
	}
	return ranks
}

// setRanks sets the ranks, which are in order.
func (a *Attachment) setRanks(ranks []AttachedRank) {
	a.runs = nil
	for _, r := range ranks {
		if k := len(a.runs) - 1; k >= 0 {
			last := &a.runs[k]
			if last.dp+last.n == r.DP && last.slot+last.n == r.Slot && last.candidate == r.Candidate {
				last.n++
				continue
			}
		}
		a.runs = append(a.runs, rankRun{r.DP, r.Slot, 1, r.Candidate})
	}
}

// AttachedRank is a rank with its slot.
type AttachedRank struct {
	DP   uint32
	Slot uint32
	// Candidate: the rank is in the worker's own range, so it carries load, and
	// is chosen while the worker is schedulable. Other ranks only have events.
	Candidate bool
}

// Stream is the event stream of one rank.
type Stream struct {
	DP, Slot uint32
	Endpoint string // checked; to be bound if its host is a wildcard
	Replay   string // checked; "" for none
	// CountCopies: the events announce each copy of a block; see the constant.
	CountCopies bool
	// OwnRank: the events are of DP, whatever rank their batches state.
	OwnRank bool
	// TotalKVBlocks is the capacity of the rank's device in blocks, 0 if it is not known.
	TotalKVBlocks uint64
	// AttentionChunkSize is in tokens, 0 if it is not known.
	AttentionChunkSize uint64
}

// compatible reports whether a worker can go from a to b without leaving its
// scope.
func (a *Attachment) compatible(b *Attachment) bool {
	return a.Scope == b.Scope && a.BlockSize == b.BlockSize && a.Eagle == b.Eagle
}

func (a *Attachment) equal(b *Attachment) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Worker == b.Worker && a.compatible(b) && slices.Equal(a.runs, b.runs) && slices.Equal(a.Streams, b.Streams) &&
		slices.Equal(a.Loads, b.Loads) && slices.Equal(a.Pages, b.Pages)
}

// Rank finds a rank; a may be nil.
func (a *Attachment) Rank(dp uint32) (AttachedRank, bool) {
	if a == nil {
		return AttachedRank{}, false
	}
	after, _ := slices.BinarySearchFunc(a.runs, dp, func(r rankRun, dp uint32) int {
		if r.dp <= dp {
			return -1
		}
		return 1
	})
	if after == 0 {
		return AttachedRank{}, false
	}
	r := &a.runs[after-1]
	if dp-r.dp >= r.n {
		return AttachedRank{}, false
	}
	return AttachedRank{DP: dp, Slot: r.slot + dp - r.dp, Candidate: r.candidate}, true
}

// filter returns the part of a with the ranks for which keep is true and those
// of their event streams for which stream is true; nil if no rank is left. keep may
// change the rank that it is given.
func (a *Attachment) filter(keep func(*AttachedRank) bool, stream func(Stream) bool) *Attachment {
	part := *a
	part.Streams = nil
	var kept []AttachedRank
	for _, r := range a.Ranks() {
		if keep(&r) {
			kept = append(kept, r)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	part.setRanks(kept)
	for _, s := range a.Streams {
		if _, ok := part.Rank(s.DP); ok && stream(s) {
			part.Streams = append(part.Streams, s)
		}
	}
	part.keepLoads(func(LoadStream) bool { return true })
	return &part
}

// retained returns the part of a that a worker keeps when its record r is
// incomplete or cannot be attached: the ranks and streams of a that r still
// names, or nil if r has another scope or block size (decision D17).
func (a *Attachment) retained(r *Record, kvEvents bool) *Attachment {
	if a == nil || a.Scope != r.Scope || a.BlockSize != r.blockSize() {
		return nil
	}
	part := a.filter(func(k *AttachedRank) bool {
		k.Candidate = k.Candidate && r.HasRank(k.DP)
		_, named := r.KVEventsEndpoints[k.DP]
		return r.HasRank(k.DP) || kvEvents && named
	}, func(s Stream) bool { return r.eventEndpoint(s.DP) != "" })
	if part != nil {
		part.keepLoads(func(s LoadStream) bool { return r.loadEndpoint(s.DP) != "" })
		if r.LoadMetrics == nil {
			part.Pages = nil
		}
	}
	return part
}

// intersect returns the part of a whose ranks are also in b, which may be nil.
func (a *Attachment) intersect(b *Attachment) *Attachment {
	return a.filter(func(k *AttachedRank) bool {
		kept, ok := b.Rank(k.DP)
		k.Candidate = k.Candidate && kept.Candidate
		return ok
	}, func(Stream) bool { return true })
}

// union returns b together with the ranks and streams that only a has. a may be
// nil; otherwise the two are compatible. Of what both have, b's version is
// used.
func (a *Attachment) union(b *Attachment) *Attachment {
	if a == nil {
		return b
	}
	both := *b
	ranks := b.Ranks()
	both.Streams, both.Loads = slices.Clone(b.Streams), slices.Clone(b.Loads)
	for i := range ranks {
		if old, ok := a.Rank(ranks[i].DP); ok {
			ranks[i].Candidate = ranks[i].Candidate || old.Candidate
		}
	}
	for _, r := range a.Ranks() {
		if _, in := b.Rank(r.DP); !in {
			ranks = append(ranks, r)
		}
	}
	for _, s := range a.Streams {
		if _, in := b.Rank(s.DP); !in {
			both.Streams = append(both.Streams, s)
		}
	}
	slices.SortFunc(ranks, func(r, s AttachedRank) int { return cmp.Compare(r.DP, s.DP) })
	both.setRanks(ranks)
	slices.SortFunc(both.Streams, func(r, s Stream) int { return cmp.Compare(r.DP, s.DP) })
	for _, s := range a.Loads {
		if _, in := b.Rank(s.DP); !in {
			both.Loads = append(both.Loads, s)
		}
	}
	slices.SortFunc(both.Loads, func(r, s LoadStream) int { return cmp.Compare(r.DP, s.DP) })
	return &both
}

// slots assigns the dense slot numbers of one scope, lowest first.
type slots struct {
	used []bool
	low  int // no slot below is free
}

func (s *slots) take() uint32 {
	for s.low < len(s.used) && s.used[s.low] {
		s.low++
	}
	if s.low == len(s.used) {
		s.used = append(s.used, false)
	}
	s.used[s.low] = true
	s.low++
	return uint32(s.low - 1)
}

func (s *slots) release(slot uint32) {
	s.used[slot] = false
	s.low = min(s.low, int(slot))
	for n := len(s.used); n > 0 && !s.used[n-1]; n-- {
		s.used = s.used[:n-1]
	}
}
