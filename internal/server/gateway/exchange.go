package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Exchange is one HTTP request and its response, on their way through a front. One goroutine uses it.
type Exchange struct {
	// Head is the request's, from Begin on.
	Head Head

	gateway  *Gateway
	via      counts.Via
	metrics  *counts.Front
	caller   *access.Caller
	place    memory.Token // among Gateway.places
	onCut    func()       // see OnCut
	body     body
	booking  *booking
	response *openai.Response // nil: the response is not parsed
	keeper   keeper
	scope    catalog.Scope // in which it has been placed
	limit    uint32        // of its answer, in tokens; 0: none
	prefills *rankOf       // the rank that prefills for the one that answers; nil: none
	tenant   string        // whose session it is
	used     openai.Usage  // from End on
	pieces   uint64        // of the answer that have passed
	trace    exchangeTrace
}

// Open returns the exchange of a caller's request; nil is a caller who may do everything. It takes no place
// before its head has come, see Admit. Close must be called at its end.
func (g *Gateway) Open(via counts.Via, caller *access.Caller) *Exchange {
	e := &Exchange{gateway: g, via: via, metrics: g.config.Metrics.Of(via), caller: caller}
	e.metrics.Open.Add(1)
	e.body.small, e.body.large = g.config.Memory.Account(memory.Requests).Limiter(), g.config.Memory.Account(memory.Bodies).Limiter()
	return e
}

// Close ends the exchange, whatever has come of it, and frees its booking.
func (e *Exchange) Close() {
	e.release()
	e.endSession() // its client may have gone before the answer
	e.metrics.Passed(e.pieces)
	e.trace.end()
	e.metrics.Open.Add(-1)
}

// release frees the exchange's memory and booking. It may be called twice.
func (e *Exchange) release() {
	e.body.release()
	e.booking.free()
	e.endBody()
	e.place.Release()
}

// endBody ends the wait for the request's body, and reports whether the request has lost its place or its memory
// meanwhile.
func (e *Exchange) endBody() (lost bool) {
	a := e.body.arrival
	if a == nil {
		return false
	}
	e.place.Reclaim()
	e.body.memory.Reclaim()
	if a.isCut() {
		return true
	}
	e.body.arrival = nil
	return false
}

// Begin takes the request's head, and begins the exchange's trace as a part of another one.
func (e *Exchange) Begin(h Head, parent tracing.Context) {
	e.Head = h
	e.trace.begin(e.gateway.config.Tracer, parent, &e.Head, e.via)
}

// Admit takes a place for the request, whose head has come, and returns why it is refused, nil if it is not.
func (e *Exchange) Admit() *Problem {
	if allow, ok := e.gateway.config.Paths.Allows(e.Head.method, e.Head.path, e.via == counts.ExtProc); !ok {
		if allow != "" {
			return errMethod(allow)
		}
		return errNoPath()
	}
	// Of requests that come at once, exactly MaxStreams are admitted; one whose body does not come makes room.
	if e.gateway.places.Take(context.Background(), &e.place, 1, 0) != nil {
		return errFull("overloaded", "The endpoint picker has too many requests under way.")
	}
	if !e.gateway.relayed.Fits(0) {
		return NoMemory()
	}
	if e.Head.HasBody && !e.Head.Upgrade {
		e.body.arrival = newArrival(e.onCut)
		e.place.Lend(e.body.arrival, stalledAfter)
	}
	return nil
}

// Patience returns how long a front waits for the next piece of the request's body, then the request is to be
// refused with BodyTimeout. So is it once Cut is closed: another request has got its place.
func (e *Exchange) Patience() time.Duration {
	if e.body.arrival == nil {
		return e.gateway.config.PickTimeout
	}
	return e.body.arrival.patience(e.gateway.config.PickTimeout)
}

// Cut is closed when the request has lost its place or its memory because its body does not come; nil: it cannot.
func (e *Exchange) Cut() <-chan struct{} {
	if e.body.arrival == nil {
		return nil
	}
	return e.body.arrival.cut
}

// OnCut has f called when Cut is closed, but not any more once the body has ended or the request has been refused. f
// must not wait. It is to be called before Admit.
func (e *Exchange) OnCut(f func()) { e.onCut = f }

// Add appends a piece of the request's body, and may keep its memory.
func (e *Exchange) Add(piece []byte) *Problem {
	e.came(len(piece))
	return e.body.add(piece, e.gateway.config.MaxBody)
}

// Read reads the request's body, of which length bytes are announced, -1 if that is not known. The error is
// that of reading.
func (e *Exchange) Read(from io.Reader, length int64) (*Problem, error) {
	return e.body.read(noted{e, from}, length, e.gateway.config.MaxBody)
}

// noted is a request's body while it comes.
type noted struct {
	of   *Exchange
	from io.Reader
}

// Read reads a piece.
func (n noted) Read(p []byte) (int, error) {
	got, err := n.from.Read(p)
	n.of.came(got)
	return got, err
}

// came notes a piece of the request's body.
func (e *Exchange) came(n int) {
	if a := e.body.arrival; a != nil && a.came(n) {
		e.place.Progressed()
		e.body.memory.Progressed()
	}
}

// Place chooses the engine of a request that has come in full, or of an upgrade, and books it there. It
// waits for Config.PickTimeout at most. fallbacks is how many further destinations there may be. The
// problem of a request that is over, because ctx has ended, is Gone; any other one is to be refused.
func (e *Exchange) Place(ctx context.Context, fallbacks int) (*Placement, *Problem) {
	if e.endBody() {
		return nil, BodyTimeout(errEvicted)
	}
	began := time.Now()
	p, bad := e.pick(ctx, fallbacks)
	if bad == nil {
		e.metrics.Placed(p.outcome, time.Since(began), e.trace.span.Example())
	}
	return p, bad
}

// PlaceElsewhere is Place for a request that the worker of its placement has not begun to serve: another one is
// chosen, and the booking moves there.
func (e *Exchange) PlaceElsewhere(ctx context.Context, former *Placement) (*Placement, *Problem) {
	return e.placeWithout(ctx, former.chosen.Worker)
}

// PlaceWithoutPrefill is Place for a request of which another engine was to compute the prompt, and that has failed because that
// one cannot be reached: another one is chosen for that, or none.
func (e *Exchange) PlaceWithoutPrefill(ctx context.Context) (*Placement, *Problem) {
	return e.placeWithout(ctx, e.prefills.Worker)
}

func (e *Exchange) placeWithout(ctx context.Context, worker uint64) (*Placement, *Problem) {
	e.Head.without = append(e.Head.without, worker)
	e.booking.free()
	e.booking = nil
	return e.pick(ctx, 0)
}

// LostPrefill reports whether the engine that was to compute the prompt cannot be reached, for a request whose answer has this
// status. It looks whether it can.
func (e *Exchange) LostPrefill(ctx context.Context, status int) bool {
	return e.prefills != nil && status >= 500 && e.gateway.reach.lost(ctx, *e.prefills)
}

func (e *Exchange) pick(ctx context.Context, fallbacks int) (*Placement, *Problem) {
	e.trace.picking(&e.Head)
	ctx, cancel := context.WithTimeoutCause(ctx, e.gateway.config.PickTimeout, errPickTimeout)
	defer cancel()
	p, bad := e.gateway.picker.pick(ctx, &e.Head, e.body.bytes, e.caller, e.metrics, fallbacks)
	if bad != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errPickTimeout) {
		bad = errGone // whatever it could not do for that reason
	}
	e.trace.picked(&e.Head, p, bad) //nolint:contextcheck // of the exchange's span
	if bad == errGone {
		e.metrics.Ended(counts.GatewayGone)
	}
	if bad != nil {
		return nil, bad
	}
	e.booking, e.scope, e.tenant, e.prefills = p.booking, p.scope, p.tenant, p.prefills
	e.limit = p.limit
	if e.Head.stored.Of {
		e.keeper = keeper{scope: p.scope, rank: p.chosen, at: p.destinations[0].text, known: true, tenant: e.Head.tenant()}
	}
	return p, nil
}

// errEvicted is the cause of a request whose body did not come, and whose place another one has.
var errEvicted = errors.New("another request has its place")

// Release frees the request's body, which the engine has.
func (e *Exchange) Release() { e.body.release() }

// Refuse ends a request that gets no engine, and returns the answer for its client.
func (e *Exchange) Refuse(p *Problem) Refusal {
	c := &e.gateway.config
	e.metrics.Ended(p.outcome)
	e.trace.refused(p)
	if p.err != nil {
		c.Log.Debug().Int("status", p.status).Str("code", p.code).Err(p.err).Msg("request refused")
	}
	e.release() // before the client knows, who may come again at once
	r := Refusal{Status: p.status, Code: p.code, Allow: p.allow, Headers: p.headers}
	if p.failed() {
		r.Body = openai.AppendError(nil, e.Head.kind, p.text, p.kind, p.code)
	}
	if p.retry {
		r.RetryAfter = c.RetryAfter
	}
	if p.missed != nil {
		r.RetryAfter, r.Dropped = p.missed.RetryAfter(), contract.ReasonSaturated
	}
	return r
}

// Kind is the API of the request.
func (e *Exchange) Kind() openai.Kind { return e.Head.kind }

// Model is the model that the request names; "": none, or not known yet.
func (e *Exchange) Model() string { return e.Head.model }

// Tokens returns what is known of the answer's tokens, 0 before End.
func (e *Exchange) Tokens() (prompt, completion uint64) { return e.used.Prompt, e.used.Completion }

// Answers is the account of what is held of answers.
func (g *Gateway) Answers() *memory.Account { return g.relayed }

// Fail counts a request that a front cannot serve and does not answer.
func (e *Exchange) Fail() { e.metrics.Ended(counts.GatewayProtocol) }

// Served notes that the request was served at an endpoint, ip:port: its booking moves there.
func (e *Exchange) Served(at string) {
	e.keptAt(at)
	if e.booking != nil {
		e.gateway.served(e.booking, at)
	}
}

// Answered notes the head of the response. The two headers are empty where the response has none.
func (e *Exchange) Answered(status int, contentType, contentEncoding string) {
	e.trace.answered(status)
	if e.prefills != nil && status >= 500 {
		e.gateway.reach.failed(*e.prefills)
	}
	if e.Head.NoResponseBody && e.booking != nil {
		e.booking.answering() // the only sign of the answer
	}
	if status >= 200 && status < 300 {
		e.Follow(contentType, contentEncoding)
		if e.keeper.known && e.Head.stored.Deletes {
			e.gateway.picker.api.Disown(e.keeper.scope, e.keeper.tenant, e.Head.stored.ID)
		}
	}
}

// Follow starts to parse the response's body, if that tells something of the booking or of ids. The two headers are
// empty if they are not known.
func (e *Exchange) Follow(contentType, contentEncoding string) {
	shows := e.keeper.known && e.Head.stored.Shows
	if shows || e.booking != nil && (e.Head.kind != openai.Other || !e.booking.light) {
		e.response = openai.NewResponse(contentType, contentEncoding)
		if shows {
			e.response.ReadIDs()
		}
	}
}

// Relay follows a piece of the response and calls pass with it; end: it is the last one. The pieces up
// to the first token, and the last one, are parsed before they are passed on: a client that has them may
// act at once, and send its next request.
func (e *Exchange) Relay(piece []byte, end bool, pass func(piece []byte, end bool) error) error {
	if len(piece) > 0 {
		e.trace.answering()
		e.pieces++
	}
	before := end || e.response != nil && !e.response.Started()
	if before {
		e.follow(piece)
	}
	if end {
		e.End()
	}
	err := e.Pass(piece, end, pass)
	if !before {
		e.follow(piece)
	}
	return err
}

// Pass calls pass with a piece of either body, and counts the piece on the account meanwhile.
func (e *Exchange) Pass(piece []byte, end bool, pass func(piece []byte, end bool) error) error {
	relayed := e.gateway.relayed
	relayed.Add(int64(len(piece)))
	defer relayed.Add(-int64(len(piece)))
	return pass(piece, end)
}

// follow reads from a piece of the response whether the first token has come and how many
// tokens there are.
func (e *Exchange) follow(piece []byte) {
	r := e.response
	if r == nil || len(piece) == 0 {
		return
	}
	if e.booking == nil {
		r.Write(piece)
		e.keep()
		return
	}
	e.booking.answering()
	started := r.Started()
	r.Write(piece)
	e.keep()
	if !started && r.Started() {
		by := counts.PrefillByFirstByte
		if r.Streams() {
			by = counts.PrefillByStream
		}
		e.booking.completePrefill(by)
		e.booking.firstToken()
	}
	if r.Streams() {
		e.booking.generated(r.Tokens())
	}
}

// Awaits reports whether further pieces of the response tell more than its length: the first token of a stream,
// or the usage of an answer in one piece.
func (e *Exchange) Awaits() bool {
	return e.response != nil && (!e.response.Streams() || !e.response.Started())
}

// End frees the booking: the engine has finished.
func (e *Exchange) End() {
	if e.response != nil {
		e.response.End()
		e.keep()
		u, said := e.response.Usage()
		e.used = u
		e.used.Completion = max(u.Completion, e.response.Tokens())
		e.trace.used(u, said)
		if predicted, ok := e.booking.predictedCached(); ok && said && u.HasCached {
			e.metrics.CachedTokens(u.Cached, predicted)
		}
		if e.response.Started() {
			e.booking.answeredWhole(selection.Answer{Tokens: max(1, e.used.Completion), Pieces: u.Completion == 0, Limit: e.limit})
		}
		e.response = nil
	}
	e.release()
	e.booking = nil
	e.endSession()
}

// endSession ends the session whose last request this is. It may be called twice.
func (e *Exchange) endSession() {
	if e.Head.session.Final {
		e.gateway.picker.api.EndSession(e.scope, e.tenant, e.Head.session.ID)
		e.Head.session.Final = false
	}
}
