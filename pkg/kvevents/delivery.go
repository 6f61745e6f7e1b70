package kvevents

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Applier takes the batches of one stream, in the order of the stream. It is
// called from one goroutine at a time.
type Applier interface {
	// Apply decodes and applies one batch, in the memory of w. The caller reads
	// w.Batch afterwards. An error means that nothing of the batch could be used.
	// Its text is for operators and holds nothing of the payload's content.
	Apply(payload []byte, w *Workspace) error
	// Clear removes the blocks of the stream's rank from all tiers.
	Clear()
	// Replayed is called before the engine's very first message, replayed or live:
	// everything that the engine ever sent follows, unless a replay breaks off.
	Replayed()
}

// rewindable is an Applier that needs to know when batches are repeated.
type rewindable interface {
	// Rewound is called before batches that were applied before are applied again.
	Rewound()
}

// lossy is an Applier that needs to know when events are lost.
type lossy interface {
	// Lost is called when messages, or events of one, were lost.
	Lost()
}

// Workspace is the memory of one apply worker, reused from batch to batch. The counts
// of an Applier in Tally are added to Subscribers.Tally.
type Workspace struct {
	Decoder Decoder
	Batch   Batch
	Tally   Tally
}

// IndexApplier is the Applier that applies one stream to an index.
type IndexApplier struct {
	Converter *Converter
	Index     Index
	Slot      uint32 // of the stream's rank
	Copies    CopyRule
	Groups    GroupRule
	// OwnRank: batches are of the rank that the stream was registered for, whatever they state.
	OwnRank bool
}

// Apply decodes a batch, converts its events and applies them.
func (a *IndexApplier) Apply(payload []byte, w *Workspace) error {
	if err := w.Decoder.Decode(payload, &w.Batch); err != nil {
		return err
	}
	if a.OwnRank {
		w.Batch.HasRank = false
	}
	a.Converter.CountCopies(a.Copies, a.Index)
	a.Converter.Groups = a.Groups
	a.Converter.Apply(&w.Batch, a.Index, &w.Tally)
	return nil
}

// Rewound makes the counts of copies void, because the events will be counted again.
func (a *IndexApplier) Rewound() { a.Converter.MakeProvisional(a.Index) }

// Lost makes the counts of copies void, because removals may be among what was lost.
func (a *IndexApplier) Lost() { a.Converter.MakeProvisional(a.Index) }

// recovered is an Index that may hold blocks that did not come from the stream, for
// example from another replica.
type recovered interface {
	// Replayed is called when the events that follow replace such blocks of a rank.
	Replayed(slot uint32)
}

// Replayed passes the call on to an index that may have blocks from elsewhere.
func (a *IndexApplier) Replayed() {
	if idx, ok := a.Index.(recovered); ok {
		idx.Replayed(a.Slot)
	}
}

// Clear removes the rank's blocks from all tiers, because its engine is a new one, and
// forgets the old one's attention groups.
func (a *IndexApplier) Clear() {
	a.Index.Clear(a.Slot)
	a.Converter.forgetGroups(a.Slot, a.Index)
}

// delivery is the output of a stream: it gives the batches to an Applier and
// evaluates the outcome. Its subscription's turnMu guards it.
type delivery struct {
	rank    catalog.Rank
	samples *samples
	lag     func(time.Duration)                     // Config.Lag
	watch   func(catalog.Rank, int64) func(Watched) // Config.Watch

	applier Applier
	shared  bool       // StreamConfig.SharedReplay
	work    *Workspace // of the worker whose turn it is; nil between turns
	applied bool       // a batch was applied in this turn
	// mixed: a batch was of another rank, or had standard envelopes. Then a clear by
	// one engine does not repair a loss, which may have been about other blocks.
	mixed bool
	// dropped and droppedWhy are those of StreamCounts.
	dropped    uint64
	droppedWhy Reason
	// blockSize is StreamStatus.OtherBlockSize; sized is Config.OtherBlockSize.
	blockSize uint32
	sized     func(of catalog.Rank, registered, size uint32)
	resume    *Resume // the checkpoint to resume from, until that is decided; nil: none
}

// apply implements output.
func (d *delivery) apply(m message) (cleared bool, err error) {
	defer d.work.trim()
	var applied func(Watched)
	if d.watch != nil && m.received != 0 {
		applied = d.watch(d.rank, m.received)
	}
	if applied == nil {
		return d.deliver(m)
	}
	cleared, err = d.deliver(m)
	w := Watched{Sequence: m.seq, Bytes: len(m.payload), Events: len(d.work.Batch.Events), Err: err}
	w.Lag, _ = lagOf(m.received, d.work.Batch.Time)
	applied(w)
	return cleared, err
}

// deliver gives a message to the applier.
func (d *delivery) deliver(m message) (cleared bool, err error) {
	d.applied = true
	b := &d.work.Batch
	b.clear() // the workspace is shared: an applier that decodes nothing must not leave another stream's batch
	if err := d.applier.Apply(m.payload, d.work); err != nil {
		d.samples.put(badMessage, d.rank, err.Error)
		d.lose()
		return false, err
	}
	if b.mayLackRemoval() {
		d.lose()
	}
	if b.outcome.unexpected != Applied {
		d.samples.put(droppedEvent, d.rank, b.outcome.unexpected.String)
		d.dropped += b.outcome.unexpectedEvents()
		d.droppedWhy = b.outcome.unexpected
	}
	d.noteBlockSize(&b.outcome)
	if b.outcome.repeats {
		d.samples.put(copiesAsSet, d.rank, func() string { return "more copies of blocks than total_kv_blocks" })
	}
	if m.received != 0 && d.lag != nil {
		if lag, ok := lagOf(m.received, b.Time); ok {
			d.lag(lag)
		}
	}
	d.mixed = d.mixed || b.RankOr(d.rank.DP) != d.rank.DP || len(d.work.Decoder.envelopes) > 0
	return b.outcome.cleared && !d.mixed, nil
}

// noteBlockSize notes whether the events have blocks of another size than the registered one.
func (d *delivery) noteBlockSize(o *outcome) {
	switch {
	case o.ownSize:
		d.blockSize = 0
	case o.otherSize != 0 && o.otherSize != d.blockSize:
		d.blockSize = o.otherSize
		if d.sized != nil {
			d.sized(d.rank, o.registered, d.blockSize)
		}
	}
}

func (d *delivery) clear() { d.applier.Clear() }

func (d *delivery) beginReplay() { d.applier.Replayed() }

func (d *delivery) lose() {
	if a, ok := d.applier.(lossy); ok {
		a.Lost()
	}
}

func (d *delivery) rewind() {
	if a, ok := d.applier.(rewindable); ok {
		a.Rewound()
	}
}

// foreign reports whether a batch of a shared replay server belongs to another rank.
func (d *delivery) foreign(payload []byte) bool {
	if !d.shared {
		return false
	}
	err := d.work.Decoder.Decode(payload, &d.work.Batch)
	return err == nil && d.work.Batch.RankOr(d.rank.DP) != d.rank.DP
}

// MaxLag is the longest lag that is reported: a longer one means that a clock is wrong.
const MaxLag = time.Hour

// For times from 1973 to the year 5138 the numbers in seconds and in milliseconds do
// not overlap, so that a number shows its unit. Other numbers are not taken as times.
const (
	minSeconds = 1e8
	minMillis  = 1e11
	maxMillis  = 1e14
)

// lagOf returns the time from stated, which is Unix time in seconds (engines) or
// milliseconds (standard publishers), to received in Unix nanoseconds: 0 to MaxLag.
// Clocks differ, so a batch may seem to be sent later than it was received: its lag
// is 0. ok is false if stated is no time.
func lagOf(received int64, stated float64) (lag time.Duration, ok bool) {
	if !(stated >= minSeconds && stated < maxMillis) { // NaN too
		return 0, false
	}
	if stated >= minMillis {
		stated /= 1000
	}
	seconds := float64(received)/1e9 - stated
	return time.Duration(min(max(seconds, 0), MaxLag.Seconds()) * 1e9), true
}
