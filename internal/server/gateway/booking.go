package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/catalog"
)

// bookings has the bookings of all requests under way.
type bookings struct {
	api    *selection.API
	lease  time.Duration
	stored chan stored // prompts that an event has reported stored; has room for one per open stream
	// endpoint returns the endpoint of a rank of a scope, ip:port, "" if there is none.
	endpoint func(catalog.Scope, catalog.Rank) string

	mu   sync.Mutex // guards live; innermost: no other lock is taken under it
	live map[*booking]struct{}
}

func newBookings(api *selection.API, lease time.Duration, most int) *bookings {
	return &bookings{
		api: api, lease: lease,
		endpoint: func(catalog.Scope, catalog.Rank) string { return "" },
		stored:   make(chan stored, most), live: make(map[*booking]struct{}),
	}
}

// stored says that the prompt of a booking is stored on the rank that computes it.
type stored struct {
	of *booking
	at time.Time
}

// renewals is how many times a lease is renewed during its length.
const renewals = 3

// run renews the leases of all bookings and completes the prefills whose end an event has
// reported, until ctx ends.
func (bo *bookings) run(ctx context.Context) error {
	renew := time.NewTicker(max(bo.lease/renewals, 1))
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-bo.stored:
			s.of.promptStored(s.at)
		case <-renew.C:
			for _, b := range bo.list() {
				b.renew()
			}
		}
	}
}

func (bo *bookings) list() []*booking {
	bo.mu.Lock()
	defer bo.mu.Unlock()
	list := make([]*booking, 0, len(bo.live))
	for b := range bo.live {
		list = append(list, b)
	}
	return list
}

// open returns an empty booking.
func (bo *bookings) open(sc catalog.Scope, of *counts.Front) *booking {
	return &booking{all: bo, scope: sc, metrics: of, whole: selection.Answer{None: true}}
}

// openLight returns an empty booking of a request of whose work nothing is known.
func (bo *bookings) openLight(sc catalog.Scope, of *counts.Front) *booking {
	b := bo.open(sc, of)
	b.light = true
	return b
}

// booking has the reservations of one request: one on the rank that answers it and, if another
// rank prefills, the other one of a pair there. The ledger ignores calls for a reservation that has
// already ended with its worker or its lease; hence the errors of most are dropped here. One that
// has ended with its worker is booked again, at its next renewal, once its worker is back.
type booking struct {
	all     *bookings
	metrics *counts.Front
	scope   catalog.Scope
	// light: nothing is known of the request's work, so that it has neither tokens nor blocks, not
	// even of its output.
	light bool
	// streams: the first byte of the answer tells the end of the prefill, not an event or a prediction.
	streams bool

	// mu guards the fields below. It is held while the ledger is called.
	mu              sync.Mutex
	answer, prefill leg
	prefillDone     bool
	// early is the sign that the prefill had ended before the reservation's id was known; nil: none.
	early *counts.PrefillSign
	freed bool
	// whole is the answer once the engine has given it as a whole.
	whole    selection.Answer
	rebooked bool // a reservation is younger than the request
	expected *uint32
	// output is how many tokens the engine has generated, outputBlocks how many blocks of them
	// were reported to the ledger.
	output, outputBlocks uint64
	signed               time.Time // when answering last had an effect
	// awaited is the rank of which the first byte of a streamed answer is awaited; nil: of none.
	awaited   *catalog.Rank
	timer     *time.Timer
	stopWatch func() // ends the watch for the stored prompt; nil: there is none
}

// leg is a reservation of a request, on the rank that answers or on the one that prefills.
type leg struct {
	id        string // "": none
	endpoint  string // of the rank, ip:port; "": not known yet
	selection selection.Selection
}

// add takes over the reservation of the rank that answers, and that of the rank that prefills for it (nil: none).
func (b *booking) add(sel, prefill *selection.Selection, expected *uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer.id, b.answer.selection, b.expected = *sel.ReservationID, *sel, expected
	b.answer.selection.Fetch = nil // the request says it
	if prefill != nil {
		b.prefill.id, b.prefill.selection = *prefill.ReservationID, *prefill
		b.prefill.selection.Fetch = nil
	}
	if b.prefillDone = b.light && prefill == nil; b.prefillDone {
		return
	}
	b.stopWatch = sel.StopWatch
	if d := sel.PredictedTTFT; d > 0 && !b.streams { // the prefill counts as complete then
		if sel.StopWatch != nil {
			d *= eventPatience
		}
		b.timer = time.AfterFunc(d, func() { b.completePrefill(counts.PrefillByPrediction) })
	}
	if b.early != nil {
		b.completePrefillLocked(*b.early)
	}
}

// eventPatience multiplies the predicted time where an event may report the end of the prefill
// first. The timer is still needed: some engines do not announce every block.
const eventPatience = 2

// start has the booking's leases renewed from now on.
func (b *booking) start() {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	if _, ok := b.all.live[b]; !ok {
		b.all.live[b] = struct{}{}
		b.metrics.Booked.Add(1)
	}
}

// storedByEvent is called when an event reports that the prompt is stored. It must not block.
func (b *booking) storedByEvent() {
	select {
	case b.all.stored <- stored{b, time.Now()}:
	default: // full: the first byte of the answer will complete the prefill
	}
}

// promptStored notes that the prompt is stored on the rank that computes it. With that the prefill is complete, unless the first
// byte of the answer is going to tell so: then the rank of a pair that prefills has begun to pass on its KV cache.
func (b *booking) promptStored(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.streams:
		b.completePrefillLocked(counts.PrefillByEvent)
	case b.prefill.id != "" && !b.prefillDone && !b.freed && !b.rebooked:
		b.all.api.PrefillEnded(b.prefill.id, at)
	}
}

// completePrefill reports the end of the prefill to the ledger; only the first call has an
// effect. Only the first event of a stream is precise enough for the ledger to learn the
// prefill's speed from it; other signs call PrefillInferred, which teaches nothing.
func (b *booking) completePrefill(by counts.PrefillSign) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.completePrefillLocked(by)
}

func (b *booking) completePrefillLocked(by counts.PrefillSign) {
	switch {
	case b.prefillDone || b.freed:
		return
	case b.answer.id == "": // an event or the prediction, before Select has returned the id
		b.early = &by
		return
	}
	b.prefillDone = true
	b.endWatchLocked()
	complete := b.all.api.PrefillInferred
	if by == counts.PrefillByStream && !b.rebooked {
		complete = b.all.api.PrefillComplete
	}
	_ = complete(b.answer.id)
	if b.prefill.id != "" {
		_ = complete(b.prefill.id)
		b.freePrefillLocked()
	}
	b.metrics.PrefillCompleted(by)
}

// firstToken reports that the first token has come, whatever has told the end of the prefill.
func (b *booking) firstToken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.freed && b.answer.id != "" {
		b.all.api.FirstToken(b.answer.id)
	}
}

// answeredWhole notes that the engine has given its whole answer.
func (b *booking) answeredWhole(of selection.Answer) {
	if b != nil {
		b.mu.Lock()
		b.whole = of
		b.mu.Unlock()
	}
}

// at returns the endpoint of the booked rank, ip:port.
func (b *booking) at() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answer.endpoint
}

// locatedAt notes the endpoint of a leg's rank, ip:port.
func (b *booking) locatedAt(l *leg, endpoint string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.endpoint = endpoint
}

// signEvery bounds how often the bytes of one answer are reported as a sign of life.
const signEvery = 100 * time.Millisecond

// answering reports that bytes of the answer have come.
func (b *booking) answering() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awaitedLocked(true)
	now := time.Now()
	if b.freed || b.answer.id == "" || now.Sub(b.signed) < signEvery {
		return
	}
	b.signed = now
	b.all.api.Answering(b.scope, b.answer.selection.Rank)
}

// await notes that the answer is a stream whose first byte is awaited. If another rank prefills, that
// may be the one that does not go on, so that nothing is noted.
func (b *booking) await() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.freed && b.answer.id != "" && b.prefill.id == "" {
		b.awaitLocked()
	}
}

func (b *booking) awaitLocked() {
	b.awaited = new(b.answer.selection.Rank)
	b.all.api.Await(b.scope, *b.awaited)
}

// awaitedLocked ends the wait for the first byte, if there is one.
func (b *booking) awaitedLocked(came bool) {
	if b.awaited != nil {
		b.all.api.Awaited(b.scope, *b.awaited, came)
		b.awaited = nil
	}
}

// maxGenerated bounds the output that is counted for a request, in tokens. The count may be
// what an engine claims.
const maxGenerated = 1 << 20

// generated reports to the ledger that the output is tokens long so far.
func (b *booking) generated(tokens uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.output = min(tokens, maxGenerated)
	b.reportOutputLocked()
}

// reportOutputLocked reports to the ledger the blocks of output that it does not know yet.
func (b *booking) reportOutputLocked() {
	if b.freed || b.light {
		return
	}
	for size := uint64(b.answer.selection.BlockSize); b.outputBlocks < b.output/size; b.outputBlocks++ {
		var fraction *float64
		if b.expected != nil && *b.expected > 0 { // as in Dynamo: the share of the expected output that is still to come
			fraction = new(max(0, 1-float64((b.outputBlocks+1)*size)/float64(*b.expected)))
		}
		if b.all.api.OutputBlock(b.answer.id, fraction) != nil {
			return
		}
	}
}

// predictedCached returns how many tokens of the prompt the index expected in the cache of the
// chosen rank. ok is false if another rank has served the request, or nobody knows which one.
func (b *booking) predictedCached() (tokens uint64, ok bool) {
	if b == nil {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed {
		return 0, false
	}
	for _, r := range b.answer.selection.Overlap.DP {
		if r.DP == b.answer.selection.Rank.DP {
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
	if b.freed || b.answer.id == "" {
		return nil
	}
	former := b.answer
	b.answer.id = uuid.NewString()
	b.answer.selection.Rank, b.answer.selection.Registration = to, 0
	b.answer.selection.EffectivePrefillTokens = former.selection.ISLTokens // it is not known what is cached there
	if err := b.rebookLocked(&b.answer, former.id); err != nil {
		b.answer = former
		return err
	}
	_ = b.all.api.Free(former.id)
	if b.awaited != nil {
		b.awaitedLocked(false)
		b.awaitLocked()
	}
	b.answer.endpoint = endpoint
	b.answer.selection.Overlap.DP = nil
	return nil
}

// rebookLocked books a leg again, in place of the reservation former; "": that has ended.
func (b *booking) rebookLocked(l *leg, former string) error {
	registration, err := b.all.api.Rebook(&selection.Rebooking{
		ID: l.id, Former: former, Selection: &l.selection, Rank: l.selection.Rank, After: l.selection.Registration,
		PrefillDone: b.prefillDone, ExpectedOutputTokens: b.expected, Lease: b.all.lease,
	})
	if err != nil {
		return err
	}
	l.selection.Registration = registration
	b.endWatchLocked() // it is for the rank as it was
	b.rebooked = true
	if l == &b.answer {
		b.outputBlocks = 0
		b.reportOutputLocked()
	}
	return nil
}

// renew renews the leases. A reservation that has ended with its worker is booked again, under
// its id, if the worker has come back with the same rank at the same endpoint. One that has ended
// otherwise is not.
func (b *booking) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range [...]*leg{&b.answer, &b.prefill} {
		if l.id == "" || b.freed || contract.KindOf(b.all.api.Renew(l.id)) != contract.NotFound ||
			l.endpoint == "" || b.all.endpoint(b.scope, l.selection.Rank) != l.endpoint {
			continue
		}
		if b.rebookLocked(l, "") == nil {
			b.metrics.Rebooked()
		}
	}
}

// freePrefillLocked ends the reservation of the rank that prefills, if there is one.
func (b *booking) freePrefillLocked() {
	if b.prefill.id != "" {
		_ = b.all.api.FreeAfter(b.prefill.id, b.whole) // if that is no answer yet, the end of the prefill has been reported
		b.prefill = leg{}
	}
}

// free ends both reservations. Further calls, and calls on a nil booking, do nothing.
func (b *booking) free() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.endWatchLocked()
	b.freePrefillLocked()
	if b.answer.id != "" && !b.freed {
		if b.whole.None {
			b.all.api.Abandon(b.answer.id)
		}
		_ = b.all.api.FreeAfter(b.answer.id, b.whole)
	}
	b.freed = true
	b.awaitedLocked(false)
	b.mu.Unlock()
	b.all.mu.Lock()
	if _, ok := b.all.live[b]; ok {
		delete(b.all.live, b)
		b.metrics.Booked.Add(-1)
	}
	b.all.mu.Unlock()
}

// endWatchLocked stops the timer and the watch that wait for the end of the prefill.
func (b *booking) endWatchLocked() {
	if b.timer != nil {
		b.timer.Stop()
	}
	if b.stopWatch != nil {
		b.stopWatch()
		b.stopWatch = nil
	}
}
