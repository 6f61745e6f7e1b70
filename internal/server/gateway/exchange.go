package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// phase is the state of an exchange. It only moves down the list. exchange.handle has what
// Envoy may send in each phase and what follows.
type phase uint8

const (
	// awaitingRequest: no message has come. The request's headers are next.
	awaitingRequest phase = iota
	// readingRequest: the headers have come, and perhaps a part of the body. They are not
	// answered yet: their answer names the engine, and choosing it takes the whole body. The
	// end of the body or the trailers are next, then the pick. An upgrade is picked at once.
	readingRequest
	// awaitingResponse: the request was answered, an upgrade's headers alone, and is on its way
	// to the engine.
	awaitingResponse
	// relaying: the response's headers have come, and its body passes chunk by chunk.
	relaying
	// ended: the response is complete. Only the end of the stream should follow.
	ended
)

// String names the phase in errors.
func (p phase) String() string {
	return [...]string{"awaiting the request", "reading the request", "awaiting the response", "relaying the response", "ended"}[p]
}

// exchange is one HTTP request on its way through Envoy. One goroutine runs it.
type exchange struct {
	server *Server
	stream extproc.ExternalProcessor_ProcessServer
	caller *access.Caller
	peer   string // address of the gateway

	phase         phase
	admitted      bool          // it counts in Server.admitted
	receivedAhead chan received // has the message that is received ahead; nil: receive calls Recv itself
	head          head
	body          body
	// passing: the request's body has not ended, and its pieces pass to the engine beside the
	// response, as those of an upgrade do from its placement on.
	passing  bool
	booking  *booking
	response *openai.Response // nil: the response is not parsed
	trace    exchangeTrace
}

// received is the result of a Recv.
type received struct {
	message *extproc.ProcessingRequest
	err     error
}

// errNoBody ends the wait for a request's body.
var errNoBody = errors.New("the request's body did not come")

// run handles the stream's messages until the stream ends or fails. It frees the booking in
// every case.
func (e *exchange) run() error {
	defer e.trace.end()
	defer e.release()
	for {
		m, err := e.receive()
		switch {
		case errors.Is(err, io.EOF):
			return nil // the request or its client is gone
		case errors.Is(err, errNoBody):
			return e.refuse(errBodyTimeout(err))
		case err != nil:
			return err
		}
		done, err := e.handle(m)
		if err != nil || done {
			return err
		}
	}
}

// release frees the exchange's memory and booking. It may be called twice.
func (e *exchange) release() {
	e.body.release()
	e.booking.free()
	if e.admitted {
		e.admitted = false
		e.server.admitted.Add(-1)
	}
}

// receive returns the next message. It waits for a part of a request that is being read for
// Config.PickTimeout; the error is then errNoBody.
func (e *exchange) receive() (*extproc.ProcessingRequest, error) {
	var late <-chan time.Time
	if e.phase == readingRequest {
		patience := time.NewTimer(e.server.config.PickTimeout)
		defer patience.Stop()
		late = patience.C
		if e.receivedAhead == nil {
			e.receivedAhead = make(chan received, 1)
			go e.receiveAhead(e.receivedAhead)
		}
	}
	if e.receivedAhead == nil {
		return e.stream.Recv()
	}
	select {
	case r := <-e.receivedAhead:
		e.receivedAhead = nil
		return r.message, r.err
	case <-late:
		return nil, errNoBody
	}
}

// receiveAhead receives the next message beside the exchange's goroutine. Nothing else interrupts
// Recv, and only Recv reports that the client has left. It returns with the end of the stream at the
// latest.
func (e *exchange) receiveAhead(to chan<- received) received {
	m, err := e.stream.Recv()
	r := received{m, err}
	to <- r
	return r
}

// aheadAfter is how long a request is placed without a look at whether its client has left. Most are
// placed by then, and a message that is received ahead costs a goroutine and a change to it and back.
const aheadAfter = 5 * time.Millisecond

// whilePlacing receives the next message ahead if stop is not called within aheadAfter, and calls came
// with it.
func (e *exchange) whilePlacing(came func(received)) (stop func()) {
	ahead := make(chan received, 1)
	begin := time.AfterFunc(aheadAfter, func() { came(e.receiveAhead(ahead)) })
	return func() {
		if !begin.Stop() {
			e.receivedAhead = ahead
		}
	}
}

// handle answers one message. done: the stream is to end.
func (e *exchange) handle(m *extproc.ProcessingRequest) (done bool, err error) {
	switch r := m.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		if e.phase == awaitingRequest {
			return e.begin(m, r.RequestHeaders)
		}
	case *extproc.ProcessingRequest_RequestBody:
		switch {
		case e.phase == readingRequest:
			return e.read(r.RequestBody)
		case e.passing:
			return false, e.passBody(r.RequestBody)
		case e.phase >= relaying:
			return false, nil // Envoy has answered the request itself, so the rest of its body is not needed
		}
	case *extproc.ProcessingRequest_RequestTrailers:
		switch {
		case e.phase == readingRequest:
			return e.place(bodyThenTrailers)
		case e.passing:
			e.passing = false
			return false, e.stream.Send(requestTrailers())
		case e.phase >= relaying:
			return false, nil
		}
	case *extproc.ProcessingRequest_ResponseHeaders:
		// Response headers before the request's answer are those of Envoy's own response.
		if e.phase == readingRequest || e.phase == awaitingResponse {
			return false, e.relayHeaders(m, r.ResponseHeaders)
		}
	case *extproc.ProcessingRequest_ResponseBody:
		if e.relays() {
			return false, e.relayBody(r.ResponseBody)
		}
	case *extproc.ProcessingRequest_ResponseTrailers:
		if e.relays() {
			e.endResponse()
			return false, e.stream.Send(responseTrailers())
		}
	}
	return true, status.Errorf(codes.InvalidArgument, "unexpected %T while %v", m.GetRequest(), e.phase)
}

// relays reports whether a part of the response behind its headers may come. The first one begins the
// response of a filter that does not send the headers (response_header_mode SKIP).
func (e *exchange) relays() bool {
	if e.phase == readingRequest || e.phase == awaitingResponse {
		e.body.release()
		e.phase = relaying
		e.parse("", "")
	}
	return e.phase == relaying
}

// begin handles the request's headers.
func (e *exchange) begin(m *extproc.ProcessingRequest, h *extproc.HttpHeaders) (done bool, err error) {
	e.phase = readingRequest
	e.head = readHead(h.GetHeaders(), m.GetMetadataContext(), e.server.config.MetadataPrefix)
	e.head.hasBody = !h.GetEndOfStream()
	e.trace.begin(e.stream.Context(), e.server.config.Tracer, &e.head)
	if err := e.checkModes(m.GetProtocolConfig()); err != nil {
		if e.head.upgrade {
			return true, e.refuse(errNoUpgrade(err))
		}
		e.server.config.Metrics.Ended(counts.GatewayProtocol)
		return true, err
	}
	if !e.admitted {
		return true, e.refuse(errFull("overloaded", "The endpoint picker has too many requests under way."))
	}
	if !e.server.relayed.Fits(0) {
		return true, e.refuse(errNoMemory())
	}
	switch {
	case h.GetEndOfStream():
		return e.place(headersOnly)
	case e.head.upgrade:
		return e.place(headersFirst)
	}
	return false, nil
}

// checkModes fails unless the filter streams both bodies in full duplex. In every other mode
// messages come in another order, and in the buffering modes Envoy and the picker would wait
// for each other. The response's body may be left out (NONE).
func (e *exchange) checkModes(c *extproc.ProtocolConfiguration) error {
	if c == nil {
		return nil // older Envoys do not report their modes
	}
	const duplex = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	request, response := c.GetRequestBodyMode(), c.GetResponseBodyMode()
	if request == duplex && response == filterv3.ProcessingMode_NONE {
		e.head.noResponseBody = true
		e.server.warnNoResponseBody()
		return nil
	}
	if request != duplex || response != duplex {
		e.server.config.Log.Error().Stringer("request_body_mode", request).Stringer("response_body_mode", response).Str("gateway", e.peer).
			Msg("ext_proc filter refused: it needs processing_mode request_body_mode and response_body_mode FULL_DUPLEX_STREAMED, and both trailers SEND")
		return status.Errorf(codes.FailedPrecondition,
			"processing_mode has request_body_mode %v and response_body_mode %v; both must be FULL_DUPLEX_STREAMED", request, response)
	}
	return nil
}

// read handles a chunk of the request's body.
func (e *exchange) read(b *extproc.HttpBody) (done bool, err error) {
	if bad := e.body.add(b.GetBody(), e.server.config.MaxBody); bad != nil {
		return true, e.refuse(bad)
	}
	if b.GetEndOfStream() {
		return e.place(bodyThenEnd)
	}
	return false, nil
}

// extent is which parts of a request have come.
type extent uint8

const (
	headersOnly  extent = iota
	headersFirst        // the body comes after the answer, see head.upgrade
	bodyThenEnd
	bodyThenTrailers
)

// place picks the engine of a request that has come in full, or of an upgrade, and answers its
// parts in the order that Envoy expects: headers, body, trailers.
func (e *exchange) place(has extent) (done bool, err error) {
	began := time.Now()
	e.trace.picking(&e.head)
	ctx, cancel := context.WithTimeoutCause(e.stream.Context(), e.server.config.PickTimeout, errPickTimeout)
	defer cancel()
	placed := e.whilePlacing(func(r received) {
		if has != headersFirst || !isRequestPart(r.message) { // any other message before the answer means that the request is over
			cancel()
		}
	})
	p, bad := e.server.picker.pick(ctx, &e.head, e.body.bytes, e.caller, e.server.fallbacks.of(e.peer))
	placed()
	if bad != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errPickTimeout) {
		bad = errGone // whatever it could not do for that reason
	}
	e.trace.picked(&e.head, p, bad)
	if bad == errGone {
		e.server.config.Metrics.Ended(counts.GatewayGone)
		return false, nil // run handles the message that has come
	}
	if bad != nil {
		return true, e.refuse(bad)
	}
	e.booking = p.booking
	e.server.config.Metrics.Placed(p.outcome, time.Since(began), e.trace.span.Example())
	e.phase, e.passing = awaitingResponse, has == headersFirst
	if err := e.stream.Send(headersPlaced(p)); err != nil || has <= headersFirst {
		return false, err
	}
	err = chunks(p.body, has == bodyThenEnd, func(piece []byte, end bool) error { return e.stream.Send(requestBody(piece, end)) })
	e.body.release()
	if err != nil || has == bodyThenEnd {
		return false, err
	}
	return false, e.stream.Send(requestTrailers())
}

// isRequestPart reports whether a message has a part of the request behind its headers.
func isRequestPart(m *extproc.ProcessingRequest) bool {
	return m.GetRequestBody() != nil || m.GetRequestTrailers() != nil
}

// refuse answers the client in the engine's place. The caller then ends the stream.
func (e *exchange) refuse(p *problem) error {
	e.server.config.Metrics.Ended(p.outcome)
	e.trace.refused(p)
	if p.err != nil {
		e.server.config.Log.Debug().Int("status", p.status).Str("code", p.code).Err(p.err).Msg("request refused")
	}
	e.release() // before the client knows, who may come again at once
	return e.stream.Send(immediate(p, e.head.kind, e.server.config.RetryAfter))
}

// relayHeaders handles the response's headers.
func (e *exchange) relayHeaders(m *extproc.ProcessingRequest, h *extproc.HttpHeaders) error {
	e.body.release()
	e.phase = relaying
	head := readResponseHead(h.GetHeaders(), m.GetMetadataContext())
	e.trace.answered(head.status)
	if head.served != "" {
		e.server.served(e.peer, e.booking, head.served)
	}
	if e.head.noResponseBody && e.booking != nil {
		e.booking.answering() // the only sign of the answer
	}
	if head.status >= 200 && head.status < 300 {
		e.parse(head.contentType, head.contentEncoding)
	}
	if h.GetEndOfStream() {
		e.endResponse()
	}
	return e.stream.Send(responseHeaders())
}

// parse has the response's body parsed, where that tells something of the booking. The two headers are
// empty if they are not known.
func (e *exchange) parse(contentType, contentEncoding string) {
	if e.booking != nil && (e.head.kind != openai.Other || !e.booking.light) {
		e.response = openai.NewResponse(contentType, contentEncoding)
	}
}

// relayBody passes a chunk of the response on and parses it. The chunks up to the first token,
// and the last one, are parsed before they are passed on: a client that has them may act at
// once, and send its next request.
func (e *exchange) relayBody(b *extproc.HttpBody) error {
	piece := b.GetBody()
	if len(piece) > 0 {
		e.trace.answering()
	}
	before := b.GetEndOfStream() || e.response != nil && !e.response.Started()
	if before {
		e.follow(piece)
	}
	if b.GetEndOfStream() {
		e.endResponse()
	}
	err := e.pass(b, responseBody)
	if !before {
		e.follow(piece)
	}
	return err
}

// passBody passes a chunk of an upgraded request on.
func (e *exchange) passBody(b *extproc.HttpBody) error {
	e.passing = !b.GetEndOfStream()
	return e.pass(b, requestBody)
}

// pass sends a chunk back as it came, in pieces that message makes messages of.
func (e *exchange) pass(b *extproc.HttpBody, message func(piece []byte, end bool) *extproc.ProcessingResponse) error {
	size := int64(len(b.GetBody()))
	e.server.relayed.Add(size)
	defer e.server.relayed.Add(-size)
	return chunks([][]byte{b.GetBody()}, b.GetEndOfStream(), func(piece []byte, end bool) error { return e.stream.Send(message(piece, end)) })
}

// follow reads from a chunk of the response whether the first token has come and how many
// tokens there are.
func (e *exchange) follow(piece []byte) {
	r := e.response
	if r == nil || len(piece) == 0 {
		return
	}
	e.booking.answering()
	started := r.Started()
	r.Write(piece)
	if !started && r.Started() {
		by := counts.PrefillByFirstByte
		if r.Streams() {
			by = counts.PrefillByStream
		}
		e.booking.completePrefill(by)
	}
	if r.Streams() {
		e.booking.generated(r.Tokens())
	}
}

// endResponse frees the booking: the engine has finished.
func (e *exchange) endResponse() {
	e.phase = ended
	if e.response != nil {
		e.response.End()
		u, said := e.response.Usage()
		e.trace.used(u, said)
		if predicted, ok := e.booking.predictedCached(); ok && said && u.HasCached {
			e.server.config.Metrics.CachedTokens(u.Cached, predicted)
		}
		e.response = nil
	}
	e.release()
	e.booking = nil
}
