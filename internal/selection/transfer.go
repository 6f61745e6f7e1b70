package selection

import (
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// transfers has how long KV caches take from ranks that prefill to ranks that decode. It learns from
// callers that report both the end of a pair's prefill, by the id of that side or by PrefillEnded, and its first token.
// The zero value is empty.
type transfers struct {
	mu     sync.Mutex // guards byLink and its values; innermost
	byLink map[link]*transfer
}

// link is a pair of places between which caches are passed on. A place that is not told is "".
type link struct {
	scope    catalog.Scope
	from, to linked
}

// transfer is what has been learned of a link.
type transfer struct {
	samples  int
	perToken float64 // seconds for a token of the prompt
}

const (
	// maxLinks bounds the links of which something is learned; later ones cost nothing.
	maxLinks = 4096
	// minTransfers is how many transfers are seen before they count. A sample has at least the
	// weight 1/maxTransfers.
	minTransfers, maxTransfers = 8, 64
)

// cost returns the seconds that the transfer of a prompt is expected to take, 0 until that is known.
func (t *transfers) cost(l link, tokens uint64) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.byLink[l]; x != nil && x.samples >= minTransfers {
		return x.perToken * float64(tokens)
	}
	return 0
}

// note learns from a transfer.
func (t *transfers) note(l link, tokens uint64, took time.Duration) {
	if tokens == 0 || took < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byLink[l]
	switch {
	case x != nil:
	case len(t.byLink) >= maxLinks:
		return
	case t.byLink == nil:
		t.byLink = make(map[link]*transfer)
		fallthrough
	default:
		x = new(transfer)
		t.byLink[l] = x
	}
	x.samples = min(x.samples+1, maxTransfers)
	x.perToken += (took.Seconds()/float64(tokens) - x.perToken) / float64(x.samples)
}

// sent is a transfer under way, in the record of the side of a pair that decodes.
type sent struct {
	link   link
	tokens uint64
	since  time.Time // the end of the prefill; zero: not reported
}

// PrefillEnded notes when the side of a pair that prefills has computed the prompt, for a caller that learns of it from events. The
// side stays as it is; only the time of the transfer is learned by it, once PrefillComplete tells the first token.
func (a *API) PrefillEnded(id string, at time.Time) { a.noteSide(id, at) }

// noteSide learns from a prefill_complete of one side of a pair: that of the side that prefills begins
// a transfer, and that of the side that decodes ends it.
func (a *API) noteSide(id string, now time.Time) {
	pair, ofPrefill := strings.CutSuffix(id, reservations.PrefillID(""))
	if ofPrefill {
		id = reservations.DecodeID(pair)
	}
	live, ok := a.ledger.Find(id)
	if !ok || !live.Pair {
		return
	}
	r, local := live.CallerState.(*idempotencyRecord)
	if !local || r.sent == nil {
		return
	}
	r.answers.mu.Lock()
	since := r.sent.since
	switch {
	case ofPrefill && since.IsZero():
		r.sent.since = now
	case !ofPrefill:
		r.sent.since = time.Time{}
	}
	r.answers.mu.Unlock()
	if !ofPrefill && !since.IsZero() {
		a.transfers.note(r.sent.link, r.sent.tokens, now.Sub(since))
	}
}

// inSeconds reports whether the costs of the choice are times.
func (c *choice) inSeconds() bool {
	p := c.scope.rules.Policies
	if p == nil {
		return false
	}
	_, predicts := p.Policy.(*selector.PredictedTTFT)
	return predicts && !c.decision.Model.Fallback && c.weights.TrackPrefill
}

// secondsToDecode returns what it costs, in seconds, that candidate i decodes the prompt: it waits for the prefills that
// the rank has to do itself, and delays those that decode there as much as if it had prefilled all of the prompt there.
// A longer context slows every step of the engine, as a longer prefill does.
func (c *choice) secondsToDecode(i int) float64 {
	of := predict(&c.decision, i)
	return of.Wait + of.Decode
}
