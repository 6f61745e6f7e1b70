package selection

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// transfers has how long KV caches take from some ranks to others. The zero value is empty.
type transfers struct {
	mu     sync.Mutex // guards the fields below and the values of byLink; innermost
	byLink map[link]*transfer
	swept  time.Time // when links were last looked for that are not used any more
}

// link is a pair of places between which caches are passed on. A place that is not told is "".
type link struct {
	scope    catalog.Scope
	from, to linked
}

// transfer is what has been learned of a link.
type transfer struct {
	samples int
	// Sums of the samples, each of which weighs less the older it is: of their weights, of x tokens and of y seconds.
	n, x, y, xx, xy float64
	last            time.Time // of the latest sample
	trying          int       // requests under way that try the link
}

// seconds returns how long some tokens are expected to take: a line through the samples, neither part of which is negative. It goes
// through 0 where they are all about equally long.
func (t *transfer) seconds(tokens uint64) float64 {
	mean, took := t.x/t.n, t.y/t.n
	perToken, setup := took/mean, 0.0
	if spread := t.xx/t.n - mean*mean; spread > leastSpread*leastSpread*mean*mean {
		perToken = max(0, (t.xy/t.n-mean*took)/spread)
		if setup = took - perToken*mean; setup < 0 {
			perToken, setup = took/mean, 0
		}
	}
	return setup + perToken*float64(tokens)
}

// leastSpread is how far the lengths of the samples must lie apart, as the share of their mean that their deviation is, to tell the
// setup from the time of a token.
const leastSpread = 0.1

const (
	// maxLinks bounds the links of which something is learned, and the others cost nothing. Links that were not used for forgetLink
	// make room: workers leave, and theirs with them.
	maxLinks   = 4096
	forgetLink = time.Hour
	// minTransfers is how many transfers are seen before they count. A sample has at least the
	// weight 1/maxTransfers.
	minTransfers, maxTransfers = 8, 64
)

// cost returns the seconds that the transfer of a prompt is expected to take, 0 until that is known.
func (t *transfers) cost(l link, tokens uint64) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.byLink[l]; x != nil && x.samples >= minTransfers {
		return x.seconds(tokens)
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
	x := t.entry(l)
	if x == nil {
		return
	}
	seconds := took.Seconds()
	if x.samples >= minTransfers {
		seconds = min(seconds, outlierTransfer*x.seconds(tokens)+outlierSlack)
	}
	if x.samples == maxTransfers {
		const keep = 1 - 1.0/maxTransfers
		for _, sum := range [...]*float64{&x.n, &x.x, &x.y, &x.xx, &x.xy} {
			*sum *= keep
		}
	}
	x.samples = min(x.samples+1, maxTransfers)
	n := float64(tokens)
	x.n, x.x, x.y, x.xx, x.xy = x.n+1, x.x+n, x.y+seconds, x.xx+n*n, x.xy+n*seconds
	x.last = time.Now()
}

// A transfer counts as at most outlierTransfer times what was expected, and outlierSlack seconds.
const (
	outlierTransfer = 4
	outlierSlack    = 0.1
)

// full reports whether there is no room for another link. It looks for some at most once a minute. It needs t.mu.
func (t *transfers) full() bool {
	if now := time.Now(); len(t.byLink) >= maxLinks && now.Sub(t.swept) >= time.Minute {
		t.swept = now
		maps.DeleteFunc(t.byLink, func(_ link, x *transfer) bool { return x.trying == 0 && now.Sub(x.last) > forgetLink })
	}
	return len(t.byLink) >= maxLinks
}

// entry returns what is learned of a link, nil if there are too many. It needs t.mu.
func (t *transfers) entry(l link) *transfer {
	x := t.byLink[l]
	if x == nil && !t.full() {
		if t.byLink == nil {
			t.byLink = make(map[link]*transfer)
		}
		x = new(transfer)
		t.byLink[l] = x
	}
	return x
}

// sent is the transfer of a pair under way, in the record of the side of a pair that decodes.
type sent struct {
	link   link
	tokens uint64
	since  time.Time // the end of the prefill; zero: not reported
	ended  bool      // the first token was reported
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
	since, ends := r.sent.since, !ofPrefill && !r.sent.ended
	switch {
	case ofPrefill && since.IsZero():
		r.sent.since = now
	case ends:
		r.sent.ended = true
	}
	r.answers.mu.Unlock()
	if ends && !since.IsZero() {
		a.transfers.note(r.sent.link, r.sent.tokens, now.Sub(since))
	}
}

// inSeconds reports whether the costs of the choice are times.
func (c *choice) inSeconds() bool {
	return !c.ByLoad && c.predictor() != nil && !c.decision.Model.Fallback
}

// secondsToDecode returns what it costs, in seconds, that candidate i decodes the prompt: it waits for the prefills that
// the rank has to do itself, and delays those that decode there as much as if it had prefilled all of the prompt there.
// A longer context slows every step of the engine, as a longer prefill does.
func (c *choice) secondsToDecode(i int) float64 {
	of := predict(&c.decision, i)
	return of.Wait + of.Decode
}
