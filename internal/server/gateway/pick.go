package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/selector"
)

// picker chooses the engines of requests and books their load.
type picker struct {
	config    *Config
	api       *selection.API
	models    *models
	endpoints *endpoints
	bookings  *bookings
	lengths   *lengths
	reach     *reach
	ready     func() bool     // the workers of all sources are known
	serving   *memory.Account // for the tokens of large bodies
	requests  *memory.Account // for further tokens that a tokenizer answers
	log       zerolog.Logger
}

// request is a request while its engine is chosen.
type request struct {
	*picker
	head       *Head
	caller     *access.Caller
	metrics    *counts.Front
	target     target
	pool       *pool
	body       *openai.Request
	text       []byte
	salt       string
	engineSalt string // the salt as the engine gets it
	lora       string // name of the adapter; "": none
	// streams: the engine will answer with events, and the first one, which the picker sees, completes
	// the prefill.
	streams bool
	// fallbacks is how many further destinations the gateway accepts.
	fallbacks int

	prompt   selection.Prompt
	light    bool  // nothing is known of the prompt's work
	reserved int64 // bytes reserved by reserveTokens
	// idBytes and reservedIDs are the bytes that reserveIDs was asked for, and those that it has reserved.
	idBytes, reservedIDs int64
	// without are workers that were chosen although their address is unknown.
	without []uint64
	alone   bool // no other worker prefills for the one that answers
	// prefillOnly: the request is for a worker that prefills. decodeOnly: it is for one that decodes what was prefilled.
	prefillOnly, decodeOnly bool
	// reserves is under which name a place is reserved, follows the name under which one was reserved; "": none.
	reserves, follows string
	// What the request wants, see selection.SelectRequest. firstToken is the time by which it wants its first token.
	firstToken, deadline time.Time
	refuseOnMiss         bool
	oddTarget            bool
	// only is the rank that has what the request is about; nil: any.
	only *catalog.Rank
}

// pick chooses where a request goes. The caller frees the booking of the placement, if it has
// one; with a problem there is none.
func (p *picker) pick(ctx context.Context, h *Head, text []byte, caller *access.Caller, of *counts.Front, fallbacks int) (*Placement, *Problem) {
	r := request{picker: p, head: h, caller: caller, metrics: of, text: text, fallbacks: fallbacks, without: slices.Clone(h.without)}
	defer r.releaseTokens()
	if bad := r.readWants(); bad != nil {
		return nil, bad
	}
	if h.kind == openai.Other {
		if h.reservation.prefers {
			return nil, errInvalid("not_reservable", "No endpoint can be reserved for requests of this route.")
		}
		return r.pickOther(ctx)
	}
	if bad := r.read(); bad != nil {
		return nil, bad
	}
	if bad := r.readReservation(); bad != nil {
		return nil, bad
	}
	if r.follows == "" {
		r.bindTo(ctx, r.body.Refers)
		if bad := r.findEligible(ctx); bad != nil {
			return nil, bad
		}
		if bad := r.tokenize(ctx); bad != nil {
			return nil, bad
		}
	}
	place, bad := r.book(ctx)
	switch {
	case bad != nil:
		return nil, bad
	case r.reserves != "":
		return nil, r.answerReserved(place)
	}
	place.body, place.limit = r.body.Body(r.engineSalt, place.hints), r.body.MaxTokens
	return place, nil
}

// read parses the body and finds its model, salt and workers.
func (r *request) read() *Problem {
	if r.head.kind == openai.Completions { // its prompt may be token ids
		if bad := r.reserveTokens(); bad != nil {
			return bad
		}
	}
	var err error
	if r.body, err = openai.ParseRequest(r.head.kind, r.text); err != nil {
		if r.head.encoding != "" && !strings.EqualFold(r.head.encoding, "identity") {
			return errEncoded(r.head.encoding)
		}
		return errInvalid("invalid_request_body", "Invalid request body: "+err.Error())
	}
	r.head.model = r.body.Model
	r.identify()
	known := false
	if r.target, known = r.models.find(r.body.Model, r.caller); !known {
		return r.noSuchModel()
	}
	if r.salt, r.engineSalt, err = r.body.CacheSalt(r.head.tenants, r.config.SaltTag); err != nil {
		return errInvalid("invalid_cache_salt", err.Error())
	}
	r.streams = r.body.Stream && !r.head.NoResponseBody
	if r.pool = r.models.pool(r.target.scope); r.pool == nil {
		return r.atZero(false)
	}
	r.readAdapter()
	return nil
}

// identify completes what the headers say of the session by what the body says, and counts names that are not used. A request
// that is placed again has been identified.
func (r *request) identify() {
	s := &r.head.session
	if r.body.Session != nil {
		*s = s.OrBody(r.body.Session)
	}
	if s.Ignored != 0 {
		r.api.CountIgnored(s.Ignored)
		s.Ignored = 0
	}
}

// atZero is the answer for a model without a worker or, with partly, without one that has what the request
// needs. Those who scale the model learn of the request.
func (r *request) atZero(partly bool) *Problem {
	r.api.NoteDemand(r.target.scope, partly)
	return errNoEndpoint(selector.ErrNoEndpoints)
}

// readAdapter takes the adapter that the body names beside a model without one. Only workers that
// have it are eligible; if none says so, the engine knows whether it is loaded.
func (r *request) readAdapter() {
	if r.lora = cmp.Or(r.target.lora, r.body.Adapter); r.pool.adapters[r.lora] {
		r.target.lora = r.lora
	}
}

// noSuchModel is the answer for a model that is not served. Without any worker, and before all sources of
// workers have told theirs, it is not known which models there are.
func (r *request) noSuchModel() *Problem {
	if sc := (catalog.Scope{Model: r.body.Model, Tenant: catalog.DefaultName}); r.models.named == nil && r.api.Had(sc) && r.caller.Sees(sc) {
		r.api.NoteDemand(sc, false) // long ago, but whoever scales it may start it again
	}
	if r.models.named == nil && (len(r.models.scopes()) == 0 || !r.ready()) {
		return errNoEndpoint(nil)
	}
	return UnknownModel(catalog.Clip(r.body.Model))
}

// filter returns which ranks may take a leg of the request. A subset restricts the decode leg
// only.
func (r *request) filter(prefill bool) *filter {
	f := &filter{models: r.models, endpoints: r.endpoints, prefill: prefill, lora: r.target.lora, without: slices.Clone(r.without)}
	if !prefill {
		f.subset, f.only = r.head.Subset, r.only
	}
	return f
}

// findEligible looks up the addresses that the request's subset is compared with. It is a problem
// if no rank can take the decode leg.
func (r *request) findEligible(ctx context.Context) *Problem {
	switch {
	case r.only != nil: // it was found eligible
		return nil
	case r.pool.snapshot.NumRanks == 0:
		return r.atZero(false)
	}
	if r.head.Subset.given {
		for _, e := range r.pool.snapshot.Ranks() {
			_, _ = r.endpoints.of(ctx, e.Worker, e.DP) // one that has no address is in no subset
		}
	}
	eligible := r.filter(r.prefillOnly).eligible(r.pool.snapshot)
	switch {
	case eligible == nil || slices.ContainsFunc(r.pool.snapshot.Ranks(), eligible):
		return nil
	case r.head.Subset.given: // whoever has given it decides where the request may go
		bad := errNoEndpoint(selector.ErrNoEndpoints)
		bad.retry = false
		return bad
	}
	return r.atZero(true)
}

// sessionTenant is the tenant whose session the request names: that of the headers, else the salt of the body where that has
// been read.
func (r *request) sessionTenant() string { return cmp.Or(r.head.tenant(), r.body.Salt) }

// selection returns the request to package selection. What is stored of its prompt is told to b.
func (r *request) selection(b *booking) *selection.SelectRequest {
	f := r.filter(r.prefillOnly)
	req := &selection.SelectRequest{
		Scope: r.target.scope, Prompt: r.prompt, ExpectedOutputTokens: r.body.Hints.OutputTokens,
		PolicyClass: r.head.class, Session: r.head.session.ID, SessionTenant: r.sessionTenant(), Parent: r.head.session.Parent, OfAgent: r.head.session.OfAgent(),
		SessionMode: r.config.SessionMode, Groups: r.config.SessionGroups, FilterBeforeSession: true, Lease: r.config.Lease,
		Eligible: f.eligible, EligibleKey: f.key(), ByLoad: r.light, Trace: r.head.span,
		Deadline: r.deadline, RefuseOnMiss: r.refuseOnMiss, OddTarget: r.oddTarget, Hint: selection.HintInRequest,
		FairTenant: selection.FairName(r.head.tenant()), FairnessID: r.head.fairness,
	}
	switch {
	case r.reserves != "":
		req.ReservationID, req.Lease, req.Ahead = new(r.reservationID(r.reserves)), r.config.ReserveFor, r.head.wants.from
		req.Hint = selection.NoHint // neither the answer nor the request that follows tells the engine of one
	case !r.light && (!r.streams || r.pool.prefills): // of a pair that streams it begins the transfer
		b.streams, req.Stored = r.streams, b.storedByEvent
	}
	if !r.pool.prefills && r.reserves == "" {
		req.Fallbacks = r.fallbacks
	}
	if r.decodeOnly { // it computes no prompt, so that neither its prefill nor its cache counts
		req.Override = selector.Override{TrackPrefill: new(false), OverlapWeight: new(0.0)}
	}
	if r.reserved+r.reservedIDs > 0 {
		req.Text = r
	}
	if !r.firstToken.IsZero() {
		req.TTFTTarget = max(1, time.Until(r.firstToken)) // of one whose time is over nearly nothing is left
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
func (r *request) book(ctx context.Context) (place *Placement, bad *Problem) {
	for left := false; ; {
		if place, bad = r.bookOnce(ctx); bad == nil || ctx.Err() != nil {
			return place, bad
		}
		nowhere, unknown := errors.AsType[*addressError](bad)
		switch {
		case !r.released() && r.only != nil && bad.status == http.StatusServiceUnavailable: // it has just left
			r.only = nil
		case r.released(), !unknown && (left || !errors.Is(bad, errLeft)):
			return nil, bad
		case unknown:
			r.without = append(r.without, nowhere.worker)
		default:
			left = true
		}
	}
}

// released reports whether ReleaseText has dropped the prompt's tokens.
func (r *request) released() bool { return r.prompt.HasTokenIDs && r.prompt.TokenIDs == nil }

// errLeft is the cause if a worker left the catalog after it was chosen.
var errLeft = errors.New("the chosen worker has just left")

// addressError is the cause if the address of a chosen worker is unknown.
type addressError struct {
	worker uint64
	err    error
}

func (e *addressError) Error() string { return fmt.Sprintf("worker %d: %v", e.worker, e.err) }

func (e *addressError) Unwrap() error { return e.err }

func (r *request) bookOnce(ctx context.Context) (*Placement, *Problem) {
	b := r.bookings.open(r.target.scope, r.metrics)
	if r.light {
		b = r.bookings.openLight(r.target.scope, r.metrics)
	}
	place := &Placement{booking: b, outcome: counts.GatewayBooked}
	req := r.selection(b)
	pair, err := r.choose(ctx, req)
	if err == nil {
		r.adopt(&pair.Decode, pair.Prefill, req.ExpectedOutputTokens, place)
		err = r.locate(ctx, &pair, place)
	}
	if err == nil && r.follows != "" {
		err = r.checkTaken(place)
	}
	switch {
	case r.isGone(err):
		return nil, errReservationGone(err)
	case err != nil:
		b.free()
		return nil, problemOf(ctx, err)
	case place.booking != nil && r.reserves == "":
		b.start()
		if r.streams {
			b.await()
		}
	}
	return place, nil
}

// choose chooses and books the rank that answers and, where workers prefill for others, one that prefills. What
// was reserved for the request is chosen.
func (r *request) choose(ctx context.Context, req *selection.SelectRequest) (pair selection.Pair, err error) {
	switch {
	case r.follows != "":
		return r.api.TakeOver(r.reservationID(r.follows), r.config.Lease)
	case !r.pool.prefills || r.alone:
		pair.Decode, err = r.api.Select(ctx, req, true)
		return pair, err
	}
	return r.api.SelectPair(ctx, &selection.PairRequest{
		SelectRequest: *req, PrefillEligible: r.filter(true).eligible, Conditional: r.config.Conditional,
		PrefillShares: func(e catalog.Entry, told bool) bool {
			return e.Worker.RankCount() > 1 && e.Worker.RankEndpoints[e.DP] == "" && (!told || r.rankFor(e.Worker, e.DP) == nil)
		},
	})
}

// adopt takes what is booked into the placement's booking, if anything is: a request that is placed by load
// has no reservations where the ledger has no room.
func (r *request) adopt(sel, prefill *selection.Selection, expected *uint32, place *Placement) {
	if sel.ReservationID != nil {
		place.booking.add(sel, prefill, expected)
		return
	}
	place.booking, place.outcome = nil, counts.GatewayUnbooked
}

// worker returns the rank's worker from the current snapshot.
func (r *request) worker(of catalog.Rank) (*catalog.Worker, bool) {
	snap := r.models.catalog.Snapshot(r.target.scope)
	switch {
	case snap == nil:
		return nil, false
	case r.only != nil && *r.only == of: // it may drain
		e, ok := snap.Bookable(of)
		return e.Worker, ok
	}
	return snap.Worker(of.Worker)
}

// rankFor returns the rank as the frontend of its worker wants it in a header; nil: in none. A
// rank with an endpoint of its own needs no header, nor does the only rank of a worker whose
// record asks for none.
func (p *picker) rankFor(w *catalog.Worker, dp uint32) *uint32 {
	if w.RankEndpoints[dp] != "" || w.RankCount() == 1 && w.RankHeader == nil {
		return nil
	}
	switch p.models.catalog.RankHeader(w) {
	case catalog.RankNone:
		return nil
	case catalog.RankLocal:
		return new(w.LocalRank(dp))
	}
	return &dp
}

// find returns the worker of a chosen rank and its endpoint, for which the rank is booked.
func (r *request) find(ctx context.Context, of catalog.Rank) (w *catalog.Worker, at endpoint, err error) {
	w, ok := r.worker(of)
	if !ok {
		return nil, at, errNoEndpoint(errLeft)
	}
	if at, err = r.endpoints.of(ctx, w, of.DP); err != nil {
		return nil, at, errNoEndpoint(&addressError{of.Worker, err})
	}
	return w, at, nil
}

// locate fills in the endpoints of the chosen ranks and of the fallbacks.
func (r *request) locate(ctx context.Context, pair *selection.Pair, place *Placement) error {
	sel := &pair.Decode
	w, at, err := r.find(ctx, sel.Rank)
	if err != nil {
		return err
	}
	place.scope, place.chosen, place.tenant = r.target.scope, sel.Rank, r.sessionTenant()
	place.rank = r.rankFor(w, sel.Rank.DP)
	place.destinations = append(place.destinations, at)
	b := place.booking
	if b != nil {
		b.locatedAt(&b.answer, at.text)
	}
	if prefill := pair.Prefill; prefill != nil {
		first, at, err := r.find(ctx, prefill.Rank)
		if err != nil {
			return err
		}
		if b != nil {
			b.locatedAt(&b.prefill, at.text)
		}
		place.prefiller, place.prefillRank = at.text, r.rankFor(first, prefill.Rank.DP)
		place.prefills = &rankOf{r.target.scope, prefill.Rank}
		r.reach.placed(*place.prefills)
		place.tell(prefill)
		if !selection.ObeysPrefillRank(w) {
			// The sidecar forwards the client's headers to both engines, so it gets no rank at all.
			place.rank, place.prefillRank = nil, nil
		}
	}
	place.tell(sel)
	if len(w.RankEndpoints) > 0 || w.RankCount() > 1 || place.rank != nil {
		return nil // the rank header is for one destination; a fallback would need another value
	}
	for _, rank := range sel.Fallbacks {
		w, ok := r.worker(rank)
		if !ok || w.RankCount() > 1 || len(w.RankEndpoints) > 0 || r.rankFor(w, rank.DP) != nil || sel.Fetch != nil && sel.Fetch.Source.Worker == rank.Worker {
			continue // the source would fetch from itself
		}
		if at, err := r.endpoints.of(ctx, w, rank.DP); err == nil && !place.goesTo(at.text) {
			place.destinations = append(place.destinations, at)
		}
	}
	return nil
}

// pickOther places a request of another route on an engine of its model, or of any model if it
// names none: by its token ids if its body has those of one prompt, else by load.
func (r *request) pickOther(ctx context.Context) (*Placement, *Problem) {
	r.body, _ = openai.ParseRequest(openai.Other, r.text) // Other has no faults
	switch {
	case r.head.Upgrade:
		r.body.Model = r.head.model
	case r.body.Model == "":
		r.body.Model = openai.FormModel(r.head.contentType, r.text)
	}
	r.head.model = r.body.Model
	r.identify()
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
	if r.head.stored.Of {
		targets = r.steer(ctx, targets)
	}
	r.readPromptIDs()
	last := errNoEndpoint(nil)
	for _, t := range targets {
		r.target = t
		if r.pool = r.models.pool(t.scope); r.pool == nil {
			if len(targets) == 1 && (r.body.Model != "" || r.head.HasBody) {
				last = r.atZero(false)
			}
			continue
		}
		place, bad := r.placeOther(ctx)
		if bad == nil {
			return place, nil
		}
		if last = bad; r.released() {
			break
		}
	}
	return nil, last
}

// placeOther places a request of another route in the target's scope.
func (r *request) placeOther(ctx context.Context) (*Placement, *Problem) {
	r.readAdapter()
	if bad := r.findEligible(ctx); bad != nil {
		return nil, bad
	}
	r.without = slices.Clone(r.head.without)
	if r.body.Tokens == nil {
		return r.leastLoaded(ctx)
	}
	r.streams, r.alone = r.body.Stream && !r.head.NoResponseBody, true
	r.prompt = selection.Prompt{
		TokenIDs: r.truncation().Cut(r.body.Tokens, r.kept()), HasTokenIDs: true, LoRA: r.lora, CacheSalt: r.salt,
	}
	place, bad := r.book(ctx)
	if bad == nil {
		place.body = r.body.Body(r.engineSalt, place.hints)
	}
	return place, bad
}

// readPromptIDs reads the token ids and the salt of a request of another route. Without ids the
// request is placed by load: where the body is none of a form that is known, where there is no
// memory for them, or with a salt that is refused elsewhere.
func (r *request) readPromptIDs() {
	if !r.body.HasPromptIDs() || r.reserveTokens() != nil {
		return
	}
	var err error
	if r.salt, r.engineSalt, err = r.body.CacheSalt(r.head.tenants, r.config.SaltTag); err == nil {
		r.body.Tokens = r.body.PromptIDs()
	}
}

// leastLoaded places the request on the least loaded rank whose address is known, of none that
// only prefills. A request with a body, and one that is upgraded, is booked as one request;
// without room for that it is placed all the same.
func (r *request) leastLoaded(ctx context.Context) (*Placement, *Problem) {
	fallbacks, session := r.fallbacks, ""
	if r.pool.prefills {
		fallbacks = 0
	}
	if r.head.stored.Of && r.head.HasBody { // what it leaves there is looked for by the session
		session = r.head.session.ID
	}
	for {
		sel, err := r.api.PlaceByLoad(&selection.LoadRequest{
			Scope: r.target.scope, Eligible: r.filter(false).eligible, Fallbacks: fallbacks,
			Book: r.head.HasBody, Lease: r.config.Lease, Only: r.only, Session: session, SessionTenant: r.sessionTenant(),
			SessionMode: r.config.SessionMode,
		})
		switch {
		case err != nil && r.only != nil: // it has just left
			r.only = nil
			continue
		case err != nil:
			return nil, problemOf(ctx, err)
		}
		place := &Placement{body: r.body.Body("", nil), outcome: counts.GatewayPlaced}
		if r.head.HasBody {
			place.booking, place.outcome = r.bookings.openLight(r.target.scope, r.metrics), counts.GatewayBooked
			r.adopt(&sel, nil, nil, place)
		}
		err = r.locate(ctx, &selection.Pair{Decode: sel}, place)
		if err != nil {
			place.booking.free()
		}
		nowhere, unknown := errors.AsType[*addressError](err)
		switch {
		case err == nil:
			if place.booking != nil {
				place.booking.start()
			}
			return place, nil
		case !unknown || ctx.Err() != nil:
			return nil, problemOf(ctx, err)
		}
		r.without = append(r.without, nowhere.worker)
	}
}
