package proxy

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/transport/http1"
)

// exchange is one request and its answer. One goroutine runs it.
type exchange struct {
	*gateway.Exchange

	server  *Server
	w       http.ResponseWriter
	control *http.ResponseController
	r       *http.Request
	target  string // the path with its query
	peer    netip.Addr
	ctx     context.Context // ends when the client has left
	began   time.Time
	whole   bool // the request's body has come
	freed   bool // the engine has it
	// operates: the caller may know which worker answers.
	operates bool
	line     accessLine
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1) // before Shutdown can see that an upgraded connection, or one of HTTP/2, has gone
	defer s.requests.Done()
	e, denied := s.open(w, r) //nolint:contextcheck // spans have contexts of their own
	if e == nil {
		return
	}
	defer e.Close()
	if s.config.AccessLog {
		defer e.log()
	}
	defer e.recover()
	e.begin() //nolint:contextcheck // as above
	if denied != nil {
		e.refuse(denied)
		return
	}
	e.run() //nolint:contextcheck // Admit waits for a moment at most
}

// open returns the exchange for a request, and why its caller may not send it; nil: the request is served. It has a
// frame of its own, and so has begin: below a stack of less than 4 KiB, streams that wait need half of the memory
// for it.
func (s *Server) open(w http.ResponseWriter, r *http.Request) (*exchange, *gateway.Problem) {
	began := time.Now()
	target := targetOf(r)
	if s.serveOwn(w, r, target) {
		return nil, nil
	}
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // that of a unix socket is none
	caller, denied := s.identify(r)
	return &exchange{
		Exchange: s.gateway.Open(counts.Proxy, caller), server: s, w: w, control: http.NewResponseController(w), r: r,
		target: target, peer: at.Addr().Unmap(), began: began, operates: caller.May(access.Operate),
	}, denied
}

// begin reads the request's head.
func (e *exchange) begin() {
	head := e.server.gateway.ReadHead(fieldsOf(e.r, e.target))
	head.HasBody = head.Upgrade || e.r.Body != http.NoBody
	e.Begin(head, tracing.Context{})
}

// recover logs a panic and cuts the connection, so that what has come of the answer is not taken for all.
func (e *exchange) recover() {
	if v := recover(); v != nil {
		if v != http.ErrAbortHandler { //nolint:errorlint // as net/http does
			e.line.outcome = outcomeFailed
			e.server.config.Log.Error().Interface("panic", v).Bytes("stack", debug.Stack()).Msg("request through the proxy failed")
		}
		panic(http.ErrAbortHandler)
	}
}

// targetOf returns the path and the query of a request. A client that takes this server for a proxy sends a
// whole URL, of which they are a part.
func targetOf(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") {
		return r.RequestURI
	}
	if r.Method == http.MethodConnect || r.RequestURI == "*" {
		return "*"
	}
	return r.URL.RequestURI()
}

// fieldsOf yields the head of a request as HTTP/2 has it, with names in lower case.
func fieldsOf(r *http.Request, target string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		if !yield(":method", r.Method) || !yield(":path", target) {
			return
		}
		upgrades := isWebSocket(r)
		for name, values := range r.Header {
			if name == "Upgrade" && !upgrades {
				continue // who asks for another protocol gets an answer in this one
			}
			name = strings.ToLower(name)
			for _, value := range values {
				if !yield(name, value) {
					return
				}
			}
		}
	}
}

// isWebSocket reports whether a request asks for a WebSocket. One with a body does not.
func isWebSocket(r *http.Request) bool {
	if r.Method != http.MethodGet || r.Body != http.NoBody || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return false
	}
	for _, list := range r.Header["Connection"] {
		for token := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.Trim(token, " \t"), "upgrade") {
				return true
			}
		}
	}
	return false
}

// identify returns the caller of a request. Anthropic's clients send their key in a header of its own. Without tokens,
// pages of foreign sites may not use the browsers of those who can reach the engines; with tokens they have none.
func (s *Server) identify(r *http.Request) (*access.Caller, *gateway.Problem) {
	if s.config.Guard == nil {
		err := access.CheckOrigin(r)
		if err == nil {
			err = s.config.Hosts.Check(r)
		}
		if foreign, is := errors.AsType[*access.DeniedError](err); is {
			return nil, gateway.Denied(foreign)
		}
		return nil, nil
	}
	asked := r
	if key := r.Header.Get("X-Api-Key"); key != "" && r.Header.Get("Authorization") == "" {
		asked = &http.Request{Header: http.Header{"Authorization": {"Bearer " + key}}, RemoteAddr: r.RemoteAddr, TLS: r.TLS}
	}
	caller, err := s.config.Guard.Admit(asked, access.Call, true)
	if err == nil {
		return caller, nil
	}
	refused, _ := errors.AsType[*access.DeniedError](err) // Admit has no other errors
	return caller, gateway.Denied(refused)
}

// run serves a request that its caller may send.
func (e *exchange) run() {
	e.OnCut(func() { _ = e.control.SetReadDeadline(longAgo) })
	if bad := e.Admit(); bad != nil {
		e.refuse(bad)
		return
	}
	if e.Head.HasBody && !e.Head.Upgrade && !e.readBody() {
		return
	}
	answers := e.server.gateway.Answers()
	if !answers.Reserve(streamMemory) {
		e.refuse(gateway.NoMemory())
		return
	}
	defer answers.Release(streamMemory)
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithCancel(e.r.Context())
	defer cancel()
	if e.r.ProtoMajor == 1 {
		e.server.clients.add(e, cancel)
		defer e.server.clients.remove(e)
	}
	place, bad := e.Place(e.ctx, 0)
	if bad != nil {
		e.refuse(bad)
		return
	}
	e.forward(e.ctx, place)
}

// readBody reads the request's body, and reports whether it has come.
func (e *exchange) readBody() bool {
	bad, err := e.Read(patient{e}, e.r.ContentLength)
	switch {
	case bad != nil:
		e.refuse(bad)
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.refuse(gateway.BodyTimeout(err))
	case err != nil:
		e.refuse(gateway.BadBody(err))
	default:
		e.whole = true
		_ = e.control.SetReadDeadline(time.Time{}) // fails only if the connection has ended
		return true
	}
	return false
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// patient reads the body of an exchange, and waits for each piece as long as the gateway does.
type patient struct{ e *exchange }

func (p patient) Read(b []byte) (int, error) {
	_ = p.e.control.SetReadDeadline(time.Now().Add(p.e.Patience()))
	select {
	case <-p.e.Cut(): // before or after this, the deadline is over
		return 0, os.ErrDeadlineExceeded
	default:
	}
	return p.e.r.Body.Read(b)
}

// restWithin is how long the rest of a refused request's body may take to come.
const restWithin = time.Second

// refuse answers in the engine's place.
func (e *exchange) refuse(p *gateway.Problem) {
	if p.Gone() {
		e.line.gone()
		return
	}
	r := e.Refuse(p)
	e.line.refused(r.Status, r.Code)
	h := e.w.Header()
	if r.Body != nil {
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(r.Body)))
	}
	for _, f := range r.Headers {
		h.Set(f.Name, f.Value)
	}
	if r.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(r.RetryAfter))
	}
	if r.Dropped != "" {
		h.Set(contract.DroppedHeader, r.Dropped)
	}
	if r.Allow != "" {
		h.Set("Allow", r.Allow)
	}
	if denied, ok := errors.AsType[*access.DeniedError](p); ok {
		h.Set("WWW-Authenticate", denied.Challenge)
		if denied.RetryAfter != "" {
			h.Set("Retry-After", denied.RetryAfter)
		}
	}
	e.endConnection()
	if !e.whole {
		leaveBody(e.w, e.r)
	}
	e.w.WriteHeader(r.Status)
	if e.r.Method != http.MethodHead {
		_, _ = e.w.Write(r.Body) // the client may have left
	}
}

// leaveBody prepares the answer to a request whose body, if it has one, nobody reads. Over HTTP/1.1 net/http reads on
// for a while, and must not wait for a body that does not come. Over HTTP/2 it ends the stream alone.
func leaveBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == http.NoBody || r.ProtoMajor > 1 {
		return
	}
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restWithin)) // fails only if the connection has ended
}

// endConnection makes the connection end after the answer to a request whose body others may have read in another way.
// To them the next request may be a part of it (RFC 9112, section 6.1). net/http silently drops the Content-Length beside
// chunks, and the chunks of HTTP/1.0. So every body in chunks may be such a body, and so may every body of HTTP/1.0.
func (e *exchange) endConnection() {
	if len(e.r.TransferEncoding) > 0 || !e.r.ProtoAtLeast(1, 1) {
		e.w.Header().Set("Connection", "close")
	}
}

// forward sends the request to its engine and passes the answer on.
func (e *exchange) forward(ctx context.Context, place *gateway.Placement) {
	for retries := 0; ; retries++ {
		resp, err := e.ask(ctx, place)
		if err == nil && retries < e.server.config.Retries && e.LostPrefill(ctx, resp.Status) {
			if next, bad := e.PlaceWithoutPrefill(ctx); bad == nil {
				resp.Close()
				e.server.config.Metrics.Retried(true)
				place = next
				continue
			}
		}
		if err == nil {
			at, _ := place.Destination()
			e.Served(at) //nolint:contextcheck // it looks nothing up
			e.answer(place, resp)
			return
		}
		failed, _ := errors.AsType[*http1.Error](err)
		switch {
		case ctx.Err() != nil:
			e.line.gone()
			e.server.config.Metrics.Gone()
			return
		case failed == nil || !failed.Unserved() || retries >= e.server.config.Retries:
			e.refuse(unanswered(err))
			return
		}
		next, bad := e.PlaceElsewhere(ctx, place)
		switch {
		case bad == nil:
			e.server.config.Metrics.Retried(failed.Phase > http1.TLS)
			place = next
		case bad.Gone():
			e.refuse(bad)
			return
		default: // there is no other one, so what the first one has done is what counts
			e.refuse(unanswered(err))
			return
		}
	}
}

// ask sends the request to the chosen engine. Its answer must be closed.
func (e *exchange) ask(ctx context.Context, place *gateway.Placement) (*http1.Response, error) {
	address, engine := place.Destination()
	e.line.engine = address
	to := e.server.baseOf(engine)
	r := &http1.Request{
		Method: e.r.Method, Origin: to.origin, Target: to.path + e.target, Header: e.requestHeader(place),
		HeadTimeout: e.server.config.FirstByteTimeout, Informational: e.informational,
	}
	if e.Head.Upgrade {
		r.Upgrade = e.r.Header.Get("Upgrade")
	} else {
		r.Body = place.Body()
	}
	return e.server.engines.Do(ctx, r)
}

// unanswered is the problem of a request whose engine has not answered.
func unanswered(err error) *gateway.Problem {
	failed, ok := errors.AsType[*http1.Error](err)
	switch {
	case !ok:
		return gateway.BadBody(err) // the request cannot be written as HTTP/1.1
	case errors.Is(err, http1.ErrProtocol):
		return gateway.Unanswered(http.StatusBadGateway, "engine_protocol", "The engine's answer is not HTTP.", err)
	case failed.Phase != http1.Dial && failed.Timeout():
		return gateway.Unanswered(http.StatusGatewayTimeout, "engine_timeout", "The engine did not answer in time.", err)
	}
	return gateway.Unanswered(http.StatusBadGateway, "engine_unreachable", "The engine could not be reached.", err)
}
