package gateway

import (
	"context"
	"errors"
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

// picker chooses the engines of requests and books them.
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
	rank         *uint32  // that the engine is told; nil: it has one
	prefiller    string   // ip:port of the prefill's engine; "": none
	body         [][]byte // what the engine gets, in pieces
	booking      *booking // nil: nothing is booked
}

// request is one request while its engine is chosen.
type request struct {
	*picker
	head   *head
	caller *access.Caller
	target target
	pool   *pool
	body   *openai.Request
	text   []byte
	salt   string
	told   string // the salt as the engine is told it
	// streams: the engine will answer with events, which tell when the prefill is complete.
	streams bool
	// fallbacks is how many further destinations the gateway can use.
	fallbacks int

	prompt selecting.Prompt
	held   int64 // bytes that are reserved for the prompt's tokens, see holdTokens
	// allowed are the workers that the request may go to, by id, nil for all; ranks, if not
	// nil, are the ranks of these.
	allowed []uint64
	ranks   map[catalog.Rank]bool
}

// pick chooses where a request goes. The booking of the placement, if it has one, is the
// caller's to free; with a problem there is none.
func (p *picker) pick(ctx context.Context, h *head, text []byte, caller *access.Caller, fallbacks int) (*placement, *problem) {
	r := request{picker: p, head: h, caller: caller, text: text, fallbacks: fallbacks}
	if h.kind == openai.Other {
		return r.pickByLoad(ctx)
	}
	defer func() { r.serving.Release(r.held) }()
	if bad := r.read(); bad != nil {
		return nil, bad
	}
	if bad := r.narrow(ctx, r.pool.others()); bad != nil {
		return nil, bad
	}
	if bad := r.tokenize(ctx); bad != nil {
		return nil, bad
	}
	place, bad := r.book(ctx)
	if bad != nil {
		return nil, bad
	}
	place.body = r.body.Body(r.told)
	return place, nil
}

// read reads what the body asks for.
func (r *request) read() *problem {
	if r.head.kind == openai.Completions { // whose prompt may be token ids
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
		return errUnknownModel(catalog.Clip(r.body.Model))
	}
	if r.salt, r.told, err = r.body.CacheSalt(r.head.tenants, r.config.SaltTag); err != nil {
		return errInvalid("invalid_cache_salt", err.Error())
	}
	r.streams = r.body.Stream
	if r.pool = r.models.pool(r.target.scope); r.pool == nil {
		return errNoEndpoint(nil)
	}
	return nil
}

// others are the workers that need not be told who prefills, nil for all.
func (p *pool) others() []uint64 {
	if len(p.prefill) == 0 {
		return nil
	}
	return p.decode
}

// narrow leaves the workers that have the adapter and are in the subset, of those that may do
// it (nil: all). None left is a problem.
func (r *request) narrow(ctx context.Context, may []uint64) *problem {
	r.allowed, r.ranks = may, nil
	if r.target.lora != "" {
		has := r.pool.adapters[r.target.lora]
		if may == nil {
			r.allowed = has
		} else {
			r.allowed = slices.DeleteFunc(slices.Clone(may), func(id uint64) bool { return !contains(has, id) })
		}
	}
	if r.head.subset.given {
		r.ranks = make(map[catalog.Rank]bool)
		var in []uint64
		for _, e := range r.pool.snapshot.Ranks() { // by worker
			if r.allowed != nil && !contains(r.allowed, e.Rank.Worker) {
				continue
			}
			if at, _, err := r.endpoints.of(ctx, e.Worker, e.DP); err != nil || !r.head.subset.has(at) {
				continue
			}
			r.ranks[e.Rank] = true
			if n := len(in); n == 0 || in[n-1] != e.Rank.Worker {
				in = append(in, e.Rank.Worker)
			}
		}
		r.allowed = in
		if in == nil {
			r.allowed = []uint64{}
		}
	}
	if r.allowed != nil && len(r.allowed) == 0 {
		return errNoEndpoint(selector.ErrNoEndpoints)
	}
	return nil
}

// contains reports whether a sorted list has an id.
func contains(ids []uint64, id uint64) bool {
	_, found := slices.BinarySearch(ids, id)
	return found
}

// selection is what is asked for one leg.
func (r *request) selection() *selecting.SelectRequest {
	req := &selecting.SelectRequest{
		Scope: r.target.scope, Prompt: r.prompt, ExpectedOutputTokens: r.body.Hints.OutputTokens,
		PolicyClass: r.head.class, Session: r.head.session, SoftSession: true, Lease: r.config.Lease,
		AllowedWorkers: r.allowed, HasAllowedWorkers: r.allowed != nil,
	}
	if r.ranks != nil {
		req.Eligible = func(e catalog.Entry) bool { return r.ranks[e.Rank] }
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
		req.PriorityJump = float64(max(0, *priority)) // Dynamo: the queue knows no less than none
	} else if l := r.body.Hints.LatencySensitivity; l != nil {
		req.PriorityJump = max(0, *l)
	}
	return req
}

// book chooses the ranks and books them. What has left the catalog meanwhile is chosen again,
// once.
func (r *request) book(ctx context.Context) (*placement, *problem) {
	place, bad := r.bookOnce(ctx)
	if released := r.prompt.HasTokenIDs && r.prompt.TokenIDs == nil; bad != nil && errors.Is(bad, errLeft) && !released {
		place, bad = r.bookOnce(ctx)
	}
	return place, bad
}

// errLeft is the cause where a worker left after it was chosen.
var errLeft = errors.New("the chosen worker has just left")

func (r *request) bookOnce(ctx context.Context) (*placement, *problem) {
	b := r.bookings.open(r.target.scope)
	place := &placement{booking: b}
	req := r.selection()
	if len(r.pool.prefill) > 0 {
		booked, bad := r.bookPrefill(ctx, b, place)
		if bad != nil {
			b.free()
			return nil, bad
		}
		if booked { // the decode leg neither computes nor finds the prompt
			req.Override = selector.Override{TrackPrefill: new(false), OverlapWeight: new(0.0)}
		}
	}
	if !r.streams && b.prefill == "" {
		req.Stored = b.storedByEvent
	}
	if len(r.pool.prefill) == 0 {
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

// bookPrefill books the prefill of a request that another engine decodes, if a prefill worker
// is free: else the decoding one does it. The problem ends the request.
func (r *request) bookPrefill(ctx context.Context, b *booking, place *placement) (booked bool, bad *problem) {
	req := r.selection()
	req.AllowedWorkers, req.HasAllowedWorkers, req.Eligible = r.pool.prefill, true, nil // a subset binds the decode leg only
	req.Session = ""
	if has := r.target.lora; has != "" {
		able := r.pool.adapters[has]
		req.AllowedWorkers = slices.DeleteFunc(slices.Clone(r.pool.prefill), func(id uint64) bool { return !contains(able, id) })
	}
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
	b.start() // its lease is renewed while the other leg waits
	w, ok := r.worker(sel.Rank)
	if ok {
		var at endpoint
		if at, _, err = r.endpoints.of(ctx, w, sel.Rank.DP); err == nil {
			place.prefiller = at.text
			return true, nil
		}
		r.log.Warn().Err(err).Msg("prefill worker without address")
	}
	b.freePrefill()
	return false, nil
}

// worker finds a worker as it is now.
func (r *request) worker(of catalog.Rank) (*catalog.Worker, bool) {
	if snap := r.models.catalog.Snapshot(r.target.scope); snap != nil {
		return snap.Worker(of.Worker)
	}
	return nil, false
}

// locate fills in where the chosen rank and the fallbacks are.
func (r *request) locate(ctx context.Context, sel *selecting.Selection, place *placement) error {
	w, ok := r.worker(sel.Rank)
	if !ok {
		return errNoEndpoint(errLeft)
	}
	at, tell, err := r.endpoints.of(ctx, w, sel.Rank.DP)
	if err != nil {
		return errNoEndpoint(err)
	}
	if tell {
		place.rank = new(sel.Rank.DP)
	}
	place.destinations = append(place.destinations, at.text)
	if b := place.booking; b != nil {
		b.endpoint = at.text
	}
	if len(w.RankEndpoints) > 0 || tell {
		return nil // a fallback would need a header of its own
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

// pickByLoad places a request whose prompt cannot be read on the least loaded engine of its
// model, or of any if it names none, but on none that only prefills. Nothing is booked.
func (r *request) pickByLoad(ctx context.Context) (*placement, *problem) {
	r.body, _ = openai.ParseRequest(openai.Other, r.text) // never a fault
	var targets []target
	if r.body.Model != "" {
		t, known := r.models.find(r.body.Model, r.caller)
		if !known {
			return nil, errUnknownModel(catalog.Clip(r.body.Model))
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
		if bad := r.narrow(ctx, r.pool.others()); bad != nil {
			last = bad
			continue
		}
		req := r.selection()
		req.Prompt, req.Lease, req.Advisory = selecting.Prompt{HasTokenIDs: true}, 0, true
		if len(r.pool.prefill) == 0 {
			req.Fallbacks = r.fallbacks
		}
		place := &placement{body: [][]byte{r.text}}
		sel, err := r.api.Select(ctx, req, false)
		if err == nil {
			err = r.locate(ctx, &sel, place)
		}
		if err == nil {
			return place, nil
		}
		last = problemOf(ctx, err)
	}
	return nil, last
}
