package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
)

// bookings has the bookings of all requests under way.
type bookings struct {
	api     *selecting.API
	lease   time.Duration
	metrics *telemetry.Gateway
	stored  chan *booking // bookings whose prompt an event has reported stored; has room for one per open stream

	mu   sync.Mutex // guards live; innermost: no other lock is taken under it
	live map[*booking]struct{}
}

func newBookings(api *selecting.API, lease time.Duration, most int, metrics *telemetry.Gateway) *bookings {
	return &bookings{
		api: api, lease: lease, metrics: metrics,
		stored: make(chan *booking, most), live: make(map[*booking]struct{}),
	}
}

// renewals is how many times a lease is renewed during its length.
const renewals = 3

// run renews the leases of all bookings and completes the prefills whose end an event has
// reported, until ctx ends.
func (all *bookings) run(ctx context.Context) error {
	renew := time.NewTicker(max(all.lease/renewals, 1))
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case b := <-all.stored:
			b.completePrefill(telemetry.PrefillByEvent)
		case <-renew.C:
			for _, b := range all.list() {
				b.renew()
			}
		}
	}
}

func (all *bookings) list() []*booking {
	all.mu.Lock()
	defer all.mu.Unlock()
	list := make([]*booking, 0, len(all.live))
	for b := range all.live {
		list = append(list, b)
	}
	return list
}

// open returns an empty booking.
func (all *bookings) open(sc catalog.Scope) *booking { return &booking{all: all, scope: sc} }

// booking has the reservations of one request: one on the rank that answers it and, if another
// rank prefills, a second one there. The ledger ignores calls for a reservation that has
// already ended with its worker or its lease; hence their errors are dropped here.
type booking struct {
	all   *bookings
	scope catalog.Scope

	// mu guards the fields below. It is held while the ledger is called.
	mu          sync.Mutex
	endpoint    string // of the answering rank, ip:port
	id, prefill string // ids of the two reservations; "": none
	prefillDone bool
	// early is the sign that the prefill had ended before the reservation's id was known; nil: none.
	early        *telemetry.PrefillSign
	freed        bool
	moved        bool // the booking went to another rank after the gateway had sent the request there
	selection    selecting.Selection
	expected     *uint32 // output in tokens; nil: unknown
	outputBlocks uint64  // blocks of output reported to the ledger
	timer        *time.Timer
	stopWatches  []func() // end the watches for stored prompts
}

// add takes over the reservation of the rank that answers.
func (b *booking) add(sel *selecting.Selection, expected *uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.id, b.selection, b.expected = *sel.ReservationID, *sel, expected
	b.watchLocked(sel)
	if b.early != nil {
		b.completePrefillLocked(*b.early)
	}
}

// addPrefill takes over the reservation of the rank that prefills.
func (b *booking) addPrefill(sel *selecting.Selection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prefill = *sel.ReservationID
	b.watchLocked(sel)
}

// watchLocked keeps the selection's watch for stored events, and starts the timer that
// completes the prefill at its predicted time.
func (b *booking) watchLocked(sel *selecting.Selection) {
	if sel.StopWatch != nil {
		b.stopWatches = append(b.stopWatches, sel.StopWatch)
	}
	if d := sel.PredictedTTFT; d > 0 {
		if sel.StopWatch != nil {
			d *= eventPatience
		}
		b.timer = time.AfterFunc(d, func() { b.completePrefill(telemetry.PrefillByPrediction) })
	}
}

// eventPatience multiplies the predicted time where an event may report the end of the prefill
// first. The timer is still needed: some engines do not announce every block.
const eventPatience = 2

// start has the booking's leases renewed from now on.
func (b *booking) start() {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	b.all.live[b] = struct{}{}
}

// storedByEvent is called when an event reports that the prompt is stored. It must not block.
func (b *booking) storedByEvent() {
	select {
	case b.all.stored <- b:
	default: // full: the first byte of the answer will complete the prefill
	}
}

// completePrefill reports the end of the prefill to the ledger; only the first call has an
// effect. Only the first event of a stream is precise enough for the ledger to learn the
// prefill's speed from it; other signs call PrefillInferred, which teaches nothing.
func (b *booking) completePrefill(by telemetry.PrefillSign) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.completePrefillLocked(by)
}

func (b *booking) completePrefillLocked(by telemetry.PrefillSign) {
	switch {
	case b.prefillDone || b.freed:
		return
	case b.id == "": // an event or the prediction, before Select has returned the id
		b.early = &by
		return
	}
	b.prefillDone = true
	b.endWatchesLocked()
	complete := b.all.api.PrefillInferred
	if by == telemetry.PrefillByStream && !b.moved {
		complete = b.all.api.PrefillComplete
	}
	_ = complete(b.id)
	if b.prefill != "" {
		_ = complete(b.prefill)
		_ = b.all.api.Free(b.prefill)
		b.prefill = ""
	}
	b.all.metrics.PrefillCompleted(by)
}

// at returns the endpoint of the booked rank, ip:port.
func (b *booking) at() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.endpoint
}

// maxGenerated bounds the output that is counted for a request, in tokens. The count may be
// what an engine claims.
const maxGenerated = 1 << 20

// generated reports to the ledger that the output is tokens long so far.
func (b *booking) generated(tokens uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := uint64(b.selection.BlockSize)
	if b.freed || size == 0 {
		return
	}
	for tokens = min(tokens, maxGenerated); b.outputBlocks < tokens/size; b.outputBlocks++ {
		var fraction *float64
		if b.expected != nil && *b.expected > 0 { // as in Dynamo: the share of the expected output that is still to come
			fraction = new(max(0, 1-float64((b.outputBlocks+1)*size)/float64(*b.expected)))
		}
		if b.all.api.OutputBlock(b.id, fraction) != nil {
			return
		}
	}
}

// predictedCached returns how many tokens of the prompt the index expected in the cache of the
// chosen rank. ok is false if another rank has served the request.
func (b *booking) predictedCached() (tokens uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.selection.Overlap.DP {
		if r.DP == b.selection.Rank.DP {
			return uint64(r.Tokens), true
		}
	}
	return 0, false
}

// move books the request on another rank than the chosen one, because its gateway sent it
// there.
func (b *booking) move(to catalog.Rank, endpoint string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed || b.id == "" {
		return nil
	}
	id := uuid.NewString()
	req := &selecting.ReserveRequest{
		Scope: b.scope, ID: id, Rank: to, ExpectedOutputTokens: b.expected, Lease: b.all.lease,
		Prompt: selecting.Prompt{
			SequenceHashes: b.selection.SequenceHashes, HasSequenceHashes: true,
			ISLTokens: b.selection.ISLTokens, HasISLTokens: true,
		},
	}
	if b.prefillDone {
		req.EffectivePrefillTokens = new(uint64(0))
	}
	if _, err := b.all.api.Reserve(req); err != nil {
		return err
	}
	b.endWatchesLocked()
	_ = b.all.api.Free(b.id)
	b.id, b.endpoint, b.outputBlocks, b.selection.Rank, b.moved = id, endpoint, 0, to, true
	b.selection.Overlap.DP = nil
	return nil
}

func (b *booking) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range [...]string{b.id, b.prefill} {
		if id != "" && !b.freed {
			_ = b.all.api.Renew(id)
		}
	}
}

// freePrefill ends the reservation of the prefill rank.
func (b *booking) freePrefill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endWatchesLocked()
	b.early = nil // it was of the prefill rank
	if b.prefill != "" {
		_ = b.all.api.Free(b.prefill)
		b.prefill = ""
	}
}

// free ends both reservations. Further calls, and calls on a nil booking, do nothing.
func (b *booking) free() {
	if b == nil {
		return
	}
	b.freePrefill()
	b.mu.Lock()
	if b.id != "" && !b.freed {
		_ = b.all.api.Free(b.id)
	}
	b.freed = true
	b.mu.Unlock()
	b.all.mu.Lock()
	delete(b.all.live, b)
	b.all.mu.Unlock()
}

// endWatchesLocked stops the timer and the watches that wait for the end of the prefill.
func (b *booking) endWatchesLocked() {
	if b.timer != nil {
		b.timer.Stop()
	}
	for _, stop := range b.stopWatches {
		stop()
	}
	b.stopWatches = nil
}
