package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/access"
	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/gateway/openai"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// picker chooses the engines of requests and books their load.
type picker struct {
	config    *Config
	api       *selecting.API
	models    *models
	endpoints *endpoints
	bookings  *bookings
	serving   *budget.Account // for the tokens of large bodies
	metrics   *telemetry.Gateway
	log       zerolog.Logger
}

// placement is where a request goes.
type placement struct {
	destinations []string // ip:port, the chosen one first
	rank         *uint32  // rank to name to the engine; nil: the endpoint has one rank only
	prefiller    string   // ip:port of the prefill's engine; "": none
	body         [][]byte // body for the engine, in pieces
	booking      *booking // nil: nothing is booked
}

// request is a request while its engine is chosen.
type request struct {
	*picker
	head       *head
	caller     *access.Caller
	target     target
	pool       *pool
	body       *openai.Request
	text       []byte
	salt       string
	engineSalt string // the salt as the engine gets it
	// streams: the engine will answer with events, and the first one completes the prefill.
	streams bool
	// fallbacks is how many further destinations the gateway accepts.
	fallbacks int

	prompt selecting.Prompt
	held   int64 // bytes reserved by holdTokens
	// without are workers that were chosen although their address is unknown.
	without []uint64
}

// pick chooses where a request goes. The caller frees the booking of the placement, if it has
// one; with a problem there is none.
func (p *picker) pick(ctx context.Context, h *head, text []byte, caller *access.Caller, fallbacks int) (*placement, *problem) {
	r := request{picker: p, head: h, caller: caller, text: text, fallbacks: fallbacks}
	if h.kind == openai.Other {
		return r.pickByLoad(ctx)
	}
	defer func() { r.serving.Release(r.held) }()
	if bad := r.read(); bad != nil {
		return nil, bad
	}
	if bad := r.findEligible(ctx); bad != nil {
		return nil, bad
	}
	if bad := r.tokenize(ctx); bad != nil {
		return nil, bad
	}
	place, bad := r.book(ctx)
	if bad != nil {
		return nil, bad
	}
	place.body = r.body.Body(r.engineSalt)
	return place, nil
}

// read parses the body and finds its model, salt and workers.
func (r *request) read() *problem {
	if r.head.kind == openai.Completions { // its prompt may be token ids
		if bad := r.holdTokens(); bad != nil {
			return bad
		}
	}
	var err error
	if r.body, err = openai.ParseRequest(r.head.kind, r.text); err != nil {
		return errInvalid("invalid_request_body", "Invalid request body: "+err.Error())
	}
	known := false
	if r.target, known = r.models.find(r.body.Model, r.caller); !known {
		return r.noSuchModel()
	}
	if r.salt, r.engineSalt, err = r.body.CacheSalt(r.head.tenants, r.config.SaltTag); err != nil {
		return errInvalid("invalid_cache_salt", err.Error())
	}
	r.streams = r.body.Stream
	if r.pool = r.models.pool(r.target.scope); r.pool == nil {
		return errNoEndpoint(nil)
	}
	return nil
}

// noSuchModel is the answer for a model that is not served. Without any worker it is not known
// which models there are.
func (r *request) noSuchModel() *problem {
	if r.models.named == nil && len(r.models.scopes()) == 0 {
		return errNoEndpoint(nil)
	}
	return errUnknownModel(catalog.Clip(r.body.Model))
}

// filter returns which ranks may take a leg of the request. A subset restricts the decode leg
// only.
func (r *request) filter(prefill bool) *filter {
	f := &filter{models: r.models, endpoints: r.endpoints, prefill: prefill, lora: r.target.lora, without: slices.Clone(r.without)}
	if !prefill {
		f.subset = r.head.subset
	}
	return f
}

// findEligible looks up the addresses that the request's subset is compared with. It is a problem
// if no rank can take the decode leg.
func (r *request) findEligible(ctx context.Context) *problem {
	if r.head.subset.given {
		for _, e := range r.pool.snapshot.Ranks() {
			_, _, _ = r.endpoints.of(ctx, e.Worker, e.DP) // one that has no address is in no subset
		}
	}
	eligible := r.filter(false).eligible(r.pool.snapshot)
	if eligible != nil && !slices.ContainsFunc(r.pool.snapshot.Ranks(), eligible) {
		return errNoEndpoint(selector.ErrNoEndpoints)
	}
	return nil
}

// selection returns the request to package selecting, for one leg: the prefill or the decode.
func (r *request) selection(prefill bool) *selecting.SelectRequest {
	f := r.filter(prefill)
	req := &selecting.SelectRequest{
		Scope: r.target.scope, Prompt: r.prompt, ExpectedOutputTokens: r.body.Hints.OutputTokens,
		PolicyClass: r.head.class, Session: r.head.session, SoftSession: true, Lease: r.config.Lease,
		Eligible: f.eligible, EligibleKey: f.key(),
	}
	priority, strict := r.head.priority, r.head.strictPriority
	if priority == nil {
		priority = r.body.Hints.Priority
	}
	if strict == nil {
		strict = r.body.Hints.StrictPriority
	}
	if strict != nil {
		req.StrictPriority = *strict
	}
	if priority != nil {
		req.PriorityJump = float64(max(0, *priority)) // as in Dynamo: a negative priority counts as 0
	} else if l := r.body.Hints.LatencySensitivity; l != nil {
		req.PriorityJump = max(0, *l)
	}
	return req
}

// book chooses the ranks and books them. If a chosen worker has left the catalog meanwhile, it
// tries once more; if its address is unknown, it tries the others.
func (r *request) book(ctx context.Context) (place *placement, bad *problem) {
	for left := false; ; {
		if place, bad = r.bookOnce(ctx); bad == nil || ctx.Err() != nil {
			return place, bad
		}
		released := r.prompt.HasTokenIDs && r.prompt.TokenIDs == nil
		nowhere, unknown := errors.AsType[*addressError](bad)
		switch {
		case released, !unknown && (left || !errors.Is(bad, errLeft)):
			return nil, bad
		case unknown:
			r.without = append(r.without, nowhere.worker)
		default:
			left = true
		}
	}
}

// errLeft is the cause if a worker left the catalog after it was chosen.
var errLeft = errors.New("the chosen worker has just left")

// addressError is the cause if the address of a chosen worker is unknown.
type addressError struct {
	worker uint64
	err    error
}

func (e *addressError) Error() string { return fmt.Sprintf("worker %d: %v", e.worker, e.err) }

func (e *addressError) Unwrap() error { return e.err }

func (r *request) bookOnce(ctx context.Context) (*placement, *problem) {
	b := r.bookings.open(r.target.scope)
	place := &placement{booking: b}
	req := r.selection(false)
	if r.pool.prefills {
		booked, bad := r.bookPrefill(ctx, b, place)
		if bad != nil {
			b.free()
			return nil, bad
		}
		if booked { // the decode leg computes no prompt, so neither its prefill nor its cache counts
			req.Override = selector.Override{TrackPrefill: new(false), OverlapWeight: new(0.0)}
			req.NoOverlap = true
		}
	}
	if !r.streams && b.prefill == "" {
		req.Stored = b.storedByEvent
	}
	if !r.pool.prefills {
		req.Fallbacks = r.fallbacks
	}
	if r.held > 0 {
		req.Text = r
	}
	sel, err := r.api.Select(ctx, req, true)
	if err == nil {
		b.add(&sel, req.ExpectedOutputTokens)
		err = r.locate(ctx, &sel, place)
	}
	if err != nil {
		b.free()
		return nil, problemOf(ctx, err)
	}
	b.start()
	return place, nil
}

// bookPrefill books the prefill leg on a prefill worker and reports whether it did. If none can
// take it now, the decode worker prefills. The problem ends the request.
func (r *request) bookPrefill(ctx context.Context, b *booking, place *placement) (booked bool, bad *problem) {
	for {
		req := r.selection(true)
		req.Session, req.NoWait = "", true
		if !r.streams {
			req.Stored = b.storedByEvent
		}
		sel, err := r.api.Select(ctx, req, true)
		if err != nil {
			if bad := problemOf(ctx, err); bad == errGone || errors.Is(bad, errPickTimeout) || bad.outcome == telemetry.GatewayInvalid || bad.outcome == telemetry.GatewayFailed {
				return false, bad
			}
			return false, nil
		}
		b.addPrefill(&sel)
		b.start() // so that its lease is renewed while the decode leg waits
		w, ok := r.worker(sel.Rank)
		if !ok {
			b.freePrefill()
			return false, nil
		}
		at, _, err := r.endpoints.of(ctx, w, sel.Rank.DP)
		if err == nil {
			place.prefiller = at.text
			return true, nil
		}
		b.freePrefill()
		r.without = append(r.without, sel.Rank.Worker)
	}
}

// worker returns the rank's worker from the current snapshot.
func (r *request) worker(of catalog.Rank) (*catalog.Worker, bool) {
	if snap := r.models.catalog.Snapshot(r.target.scope); snap != nil {
		return snap.Worker(of.Worker)
	}
	return nil, false
}

// locate fills in the endpoints of the chosen rank and of the fallbacks.
func (r *request) locate(ctx context.Context, sel *selecting.Selection, place *placement) error {
	w, ok := r.worker(sel.Rank)
	if !ok {
		return errNoEndpoint(errLeft)
	}
	at, needsRank, err := r.endpoints.of(ctx, w, sel.Rank.DP)
	if err != nil {
		return errNoEndpoint(&addressError{sel.Rank.Worker, err})
	}
	if needsRank {
		place.rank = new(sel.Rank.DP)
	}
	place.destinations = append(place.destinations, at.text)
	if b := place.booking; b != nil {
		b.endpoint = at.text
	}
	if len(w.RankEndpoints) > 0 || needsRank {
		return nil // the rank header is for one destination; a fallback would need another value
	}
	for _, rank := range sel.Fallbacks {
		w, ok := r.worker(rank)
		if !ok || w.RankCount() > 1 || len(w.RankEndpoints) > 0 {
			continue
		}
		if at, _, err := r.endpoints.of(ctx, w, rank.DP); err == nil && !slices.Contains(place.destinations, at.text) {
			place.destinations = append(place.destinations, at.text)
		}
	}
	return nil
}

// pickByLoad places a request whose prompt cannot be read: on the least loaded engine of its
// model, or of any model if it names none. Engines that only prefill are left out. Nothing is
// booked.
func (r *request) pickByLoad(ctx context.Context) (*placement, *problem) {
	r.body, _ = openai.ParseRequest(openai.Other, r.text) // Other has no faults
	if r.head.upgrade {
		r.body.Model = r.head.model
	}
	var targets []target
	if r.body.Model != "" {
		t, known := r.models.find(r.body.Model, r.caller)
		if !known {
			return nil, r.noSuchModel()
		}
		targets = []target{t}
	} else {
		targets = slices.DeleteFunc(r.models.scopes(), func(t target) bool { return !r.caller.Sees(t.scope) })
		rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	}
	last := errNoEndpoint(nil)
	for _, t := range targets {
		r.target = t
		if r.pool = r.models.pool(t.scope); r.pool == nil {
			continue
		}
		place, bad := r.leastLoaded(ctx)
		if bad == nil {
			return place, nil
		}
		last = bad
	}
	return nil, last
}

// leastLoaded places the request on the least loaded rank whose address is known.
func (r *request) leastLoaded(ctx context.Context) (*placement, *problem) {
	if bad := r.findEligible(ctx); bad != nil {
		return nil, bad
	}
	n := 1
	if !r.pool.prefills {
		n += r.fallbacks
	}
	r.without = nil
	for {
		ranks, err := r.api.LeastLoaded(r.target.scope, r.filter(false).eligible, n)
		if err != nil {
			return nil, problemOf(ctx, err)
		}
		place := &placement{body: r.body.Body("")}
		err = r.locate(ctx, &selecting.Selection{Rank: ranks[0], Fallbacks: ranks[1:]}, place)
		nowhere, unknown := errors.AsType[*addressError](err)
		switch {
		case err == nil:
			return place, nil
		case !unknown || ctx.Err() != nil:
			return nil, problemOf(ctx, err)
		}
		r.without = append(r.without, nowhere.worker)
	}
}
