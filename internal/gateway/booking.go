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

// bookings are those of the requests under way.
type bookings struct {
	api     *selecting.API
	lease   time.Duration
	metrics *telemetry.Gateway
	stored  chan *booking // whose prompts events have stored; has room for all

	mu   sync.Mutex // guards live; innermost
	live map[*booking]struct{}
}

func newBookings(api *selecting.API, lease time.Duration, most int, metrics *telemetry.Gateway) *bookings {
	return &bookings{
		api: api, lease: lease, metrics: metrics,
		stored: make(chan *booking, most), live: make(map[*booking]struct{}),
	}
}

// renewals is how often a lease is renewed in its length.
const renewals = 3

// run renews the leases of all bookings, and completes the prefills that events tell of, until
// ctx ends.
func (all *bookings) run(ctx context.Context) error {
	renew := time.NewTicker(all.lease / renewals)
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

// open returns a booking of nothing yet.
func (all *bookings) open(sc catalog.Scope) *booking { return &booking{all: all, scope: sc} }

// booking is the load of one request: a reservation on the rank that answers it and, where
// another one prefills, a second one there. What is said to the ledger of a reservation that
// has ended meanwhile, with its worker or its lease, has no effect.
type booking struct {
	all   *bookings
	scope catalog.Scope

	// mu guards the fields below. The ledger is called under it.
	mu          sync.Mutex
	endpoint    string // of the rank, ip:port
	id, prefill string // of the reservations; "": none
	prefillDone bool
	// storedEarly: an event has told of the end of the prefill before there was an id.
	storedEarly bool
	freed       bool
	moved       bool // booked on another rank once its answer had begun
	selection   selecting.Selection
	expected    *uint32 // tokens of output
	outputs     uint64  // blocks that were counted
	timer       *time.Timer
	stops       []func() // that end the watches for stored prompts
}

// add takes over the reservation of the rank that answers.
func (b *booking) add(sel *selecting.Selection, expected *uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.id, b.selection, b.expected = *sel.ReservationID, *sel, expected
	b.watch(sel)
	if b.storedEarly {
		b.completePrefillLocked(telemetry.PrefillByEvent)
	}
}

// addPrefill takes over the reservation of the rank that prefills.
func (b *booking) addPrefill(sel *selecting.Selection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prefill = *sel.ReservationID
	b.watch(sel)
}

// watch keeps what ends with the booking. It needs b.mu.
func (b *booking) watch(sel *selecting.Selection) {
	if sel.StopWatch != nil {
		b.stops = append(b.stops, sel.StopWatch)
	}
	if d := sel.PredictedTTFT; d > 0 {
		if sel.StopWatch != nil {
			d *= eventPatience
		}
		b.timer = time.AfterFunc(d, func() { b.completePrefill(telemetry.PrefillByPrediction) })
	}
}

// eventPatience is how many times the predicted time an event may take that is to tell of the
// end of the prefill: some engines do not announce every block.
const eventPatience = 2

// start makes the booking one whose leases are renewed.
func (b *booking) start() {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	b.all.live[b] = struct{}{}
}

// storedByEvent is called when an event says that the prompt is stored. It must not block.
func (b *booking) storedByEvent() {
	select {
	case b.all.stored <- b:
	default: // the first byte will tell
	}
}

// completePrefill says that the prefill is complete, the first time that it is called. It is
// a sample for those who learn from it only if the first event of a stream told it.
func (b *booking) completePrefill(by telemetry.PrefillSign) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.completePrefillLocked(by)
}

func (b *booking) completePrefillLocked(by telemetry.PrefillSign) {
	switch {
	case b.prefillDone || b.freed:
		return
	case b.id == "": // an event can be faster than the answer to the selection
		b.storedEarly = b.storedEarly || by == telemetry.PrefillByEvent
		return
	}
	b.prefillDone = true
	b.endWatches()
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

// at returns the endpoint of the booked rank.
func (b *booking) at() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.endpoint
}

// maxGenerated is the most output of a request that is counted, in tokens: the number may be
// what an engine says.
const maxGenerated = 1 << 20

// generated counts the output of so many tokens in all.
func (b *booking) generated(tokens uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := uint64(b.selection.BlockSize)
	if b.freed || size == 0 {
		return
	}
	for tokens = min(tokens, maxGenerated); b.outputs < tokens/size; b.outputs++ {
		var fraction *float64
		if b.expected != nil && *b.expected > 0 { // Dynamo: what is left of the expected output
			fraction = new(max(0, 1-float64((b.outputs+1)*size)/float64(*b.expected)))
		}
		if b.all.api.OutputBlock(b.id, fraction) != nil {
			return
		}
	}
}

// predictedCached is how many tokens of the prompt the chosen rank was believed to have
// cached; ok is false if another rank has served it.
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

// move books the request on another rank than was chosen: its gateway went there.
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
	b.endWatches()
	_ = b.all.api.Free(b.id)
	b.id, b.endpoint, b.outputs, b.selection.Rank, b.moved = id, endpoint, 0, to, true
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

// freePrefill ends the reservation of the rank that was to prefill.
func (b *booking) freePrefill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endWatches()
	b.storedEarly = false // it was said of the rank that was to prefill
	if b.prefill != "" {
		_ = b.all.api.Free(b.prefill)
		b.prefill = ""
	}
}

// free ends the booking. It may be called twice, and of nil.
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

// endWatches ends what waits for the end of the prefill. It needs b.mu.
func (b *booking) endWatches() {
	if b.timer != nil {
		b.timer.Stop()
	}
	for _, stop := range b.stops {
		stop()
	}
	b.stops = nil
}
