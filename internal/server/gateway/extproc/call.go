package extproc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/select-service/select-service/internal/server/gateway"
)

// phase is the state of a call. It only moves down the list. call.handle has what
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

// call is one call of the filter: one HTTP request on its way through Envoy. One goroutine runs it.
type call struct {
	*gateway.Exchange

	server *Server
	stream extprocv3.ExternalProcessor_ProcessServer
	peer   string // address of the gateway
	// ability is the gateway's.
	ability *ability

	phase         phase
	receivedAhead chan received // has the message that is received ahead; nil: receive calls Recv itself
	// passing: the request's body has not ended, and its pieces pass to the engine beside the
	// response, as those of an upgrade do from its placement on.
	passing bool
	// key is what a second filter names the call by, see observe; "": none may.
	key string

	// mu is held while a message is handled: a second filter's stream has a goroutine of its own.
	mu       sync.Mutex
	observed bool // a second filter shows the answer
	over     bool // end was called
}

// received is the result of a Recv.
type received struct {
	message *extprocv3.ProcessingRequest
	err     error
}

// errNoBody ends the wait for a request's body.
var errNoBody = errors.New("the request's body did not come")

// run handles the stream's messages until the stream ends or fails.
func (c *call) run() error {
	for {
		m, err := c.receive()
		switch {
		case errors.Is(err, io.EOF):
			return nil // the request or its client is gone
		case errors.Is(err, errNoBody):
			return c.refuse(gateway.BodyTimeout(err))
		case err != nil:
			return err
		}
		if c.phase == awaitingRequest && m.GetObservabilityMode() {
			return c.observe(m)
		}
		done, err := c.handle(m)
		if err != nil || done {
			return err
		}
	}
}

// end ends the exchange, once.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	if c.key != "" {
		c.server.observed.remove(c.key)
	}
	c.Close()
}

// headWithin is how long a stream may take to bring the headers of its request. It has no place before.
const headWithin = 10 * time.Second

var errNoHead = status.Error(codes.DeadlineExceeded, "the request's headers did not come")

// receive returns the next message. Where a part of the request has to come, it waits for a limited time:
// the error is then errNoHead or errNoBody.
func (c *call) receive() (*extprocv3.ProcessingRequest, error) {
	var patience time.Duration
	missing := errNoBody
	switch c.phase {
	case awaitingRequest:
		patience, missing = headWithin, errNoHead
	case readingRequest:
		patience = c.Patience()
	default:
		if c.receivedAhead == nil {
			return c.stream.Recv()
		}
		r := <-c.receivedAhead
		c.receivedAhead = nil
		return r.message, r.err
	}
	if c.receivedAhead == nil {
		c.receivedAhead = make(chan received, 1)
		go c.receiveAhead(c.receivedAhead)
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case r := <-c.receivedAhead:
		c.receivedAhead = nil
		return r.message, r.err
	case <-late.C:
	case <-c.Cut():
	}
	return nil, missing
}

// receiveAhead receives the next message beside the call's goroutine. Nothing else interrupts
// Recv, and only Recv reports that the client has left. It returns with the end of the stream at the
// latest.
func (c *call) receiveAhead(to chan<- received) received {
	m, err := c.stream.Recv()
	r := received{m, err}
	to <- r
	return r
}

// aheadAfter is how long a request is placed without a look at whether its client has left. Most are
// placed by then, and a message that is received ahead costs a goroutine and a change to it and back.
const aheadAfter = 5 * time.Millisecond

// whilePlacing receives the next message ahead if stop is not called within aheadAfter, and calls came
// with it.
func (c *call) whilePlacing(came func(received)) (stop func()) {
	ahead := make(chan received, 1)
	begin := time.AfterFunc(aheadAfter, func() { came(c.receiveAhead(ahead)) })
	return func() {
		if !begin.Stop() {
			c.receivedAhead = ahead
		}
	}
}

// handle answers one message. done: the stream is to end.
func (c *call) handle(m *extprocv3.ProcessingRequest) (done bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if c.phase == awaitingRequest {
			return c.begin(m, r.RequestHeaders)
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		switch {
		case c.phase == readingRequest:
			return c.read(r.RequestBody)
		case c.passing:
			return false, c.passBody(r.RequestBody)
		case c.phase >= relaying:
			return false, nil // Envoy has answered the request itself, so the rest of its body is not needed
		}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		switch {
		case c.phase == readingRequest:
			return c.place(bodyThenTrailers)
		case c.passing:
			c.passing = false
			return false, c.stream.Send(requestTrailers())
		case c.phase >= relaying:
			return false, nil
		}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		// Response headers before the request's answer are those of Envoy's own response.
		if c.phase == readingRequest || c.phase == awaitingResponse {
			return false, c.relayHeaders(m, r.ResponseHeaders)
		}
	case *extprocv3.ProcessingRequest_ResponseBody:
		if c.relays() {
			return false, c.relayBody(r.ResponseBody)
		}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		if c.relays() {
			c.phase = ended
			c.End()
			return false, c.stream.Send(responseTrailers())
		}
	}
	return true, status.Errorf(codes.InvalidArgument, "unexpected %T while %v", m.GetRequest(), c.phase)
}

// relays reports whether a part of the response behind its headers may come. The first one begins the
// response of a filter that does not send the headers (response_header_mode SKIP).
func (c *call) relays() bool {
	if c.phase == readingRequest || c.phase == awaitingResponse {
		c.Release()
		c.phase = relaying
		if !c.observed {
			c.Follow("", "")
		}
	}
	return c.phase == relaying
}

// begin handles the request's headers.
func (c *call) begin(m *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) (done bool, err error) {
	c.phase = readingRequest
	head := c.server.gateway.ReadHead(fields(h.GetHeaders()))
	readSubset(&head, m.GetMetadataContext())
	head.HasBody = !h.GetEndOfStream()
	modes := c.checkModes(m.GetProtocolConfig(), &head)
	c.Begin(head, parentOf(c.stream.Context()))
	switch {
	case modes != nil && head.Upgrade:
		return true, c.refuse(gateway.NoUpgrade(modes))
	case modes != nil:
		c.Fail()
		return true, modes
	}
	if bad := c.Admit(); bad != nil {
		return true, c.refuse(bad)
	}
	switch {
	case h.GetEndOfStream():
		return c.place(headersOnly)
	case head.Upgrade:
		return c.place(headersFirst)
	}
	return false, nil
}

// checkModes fails unless the filter streams both bodies in full duplex. In every other mode
// messages come in another order, and in the buffering modes Envoy and the picker would wait
// for each other. The response's body may be left out (NONE).
func (c *call) checkModes(modes *extprocv3.ProtocolConfiguration, head *gateway.Head) error {
	if modes == nil {
		return nil // older Envoys do not report their modes
	}
	const duplex = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	request, response := modes.GetRequestBodyMode(), modes.GetResponseBodyMode()
	if request == duplex && response == filterv3.ProcessingMode_NONE {
		c.key = c.server.observed.add(c)
		if head.NoResponseBody = !c.ability.observes.Load(); head.NoResponseBody {
			c.server.warnNoResponseBody()
		}
		return nil
	}
	if request != duplex || response != duplex {
		c.server.config.Log.Error().Stringer("request_body_mode", request).Stringer("response_body_mode", response).Str("gateway", c.peer).
			Msg("ext_proc filter refused: it needs processing_mode request_body_mode and response_body_mode FULL_DUPLEX_STREAMED, and both trailers SEND")
		return status.Errorf(codes.FailedPrecondition,
			"processing_mode has request_body_mode %v and response_body_mode %v; both must be FULL_DUPLEX_STREAMED", request, response)
	}
	return nil
}

// read handles a chunk of the request's body.
func (c *call) read(b *extprocv3.HttpBody) (done bool, err error) {
	if bad := c.Add(b.GetBody()); bad != nil {
		return true, c.refuse(bad)
	}
	if b.GetEndOfStream() {
		return c.place(bodyThenEnd)
	}
	return false, nil
}

// extent is which parts of a request have come.
type extent uint8

const (
	headersOnly  extent = iota
	headersFirst        // the body comes after the answer, see gateway.Head.Upgrade
	bodyThenEnd
	bodyThenTrailers
)

// place picks the engine of a request that has come in full, or of an upgrade, and answers its
// parts in the order that Envoy expects: headers, body, trailers.
func (c *call) place(has extent) (done bool, err error) {
	ctx, cancel := context.WithCancel(c.stream.Context())
	defer cancel()
	placed := c.whilePlacing(func(r received) {
		if has != headersFirst || !isRequestPart(r.message) { // any other message before the answer means that the request is over
			cancel()
		}
	})
	p, bad := c.Place(ctx, c.ability.fallbacks())
	placed()
	switch {
	case bad.Gone():
		return false, nil // run handles the message that has come
	case bad != nil:
		return true, c.refuse(bad)
	}
	c.phase, c.passing = awaitingResponse, has == headersFirst
	if err := c.stream.Send(headersPlaced(p, c.key)); err != nil || has <= headersFirst {
		return false, err
	}
	err = chunks(p.Body(), has == bodyThenEnd, c.pass(fieldRequestPassed))
	c.Release()
	if err != nil || has == bodyThenEnd {
		return false, err
	}
	return false, c.stream.Send(requestTrailers())
}

// isRequestPart reports whether a message has a part of the request behind its headers.
func isRequestPart(m *extprocv3.ProcessingRequest) bool {
	return m.GetRequestBody() != nil || m.GetRequestTrailers() != nil
}

// refuse answers the client in the engine's place. The caller then ends the stream.
func (c *call) refuse(p *gateway.Problem) error { return c.stream.Send(immediate(c.Refuse(p))) }

// relayHeaders handles the response's headers.
func (c *call) relayHeaders(m *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) error {
	c.Release()
	c.phase = relaying
	if !c.observed {
		c.answered(m)
	}
	if h.GetEndOfStream() {
		c.phase = ended
		c.End()
	}
	return c.stream.Send(responseHeaders())
}

// answered notes the response's headers.
func (c *call) answered(m *extprocv3.ProcessingRequest) {
	head := readResponseHead(m.GetResponseHeaders().GetHeaders(), m.GetMetadataContext())
	c.ability.learn(head.served != "")
	if head.served != "" {
		c.Served(head.served)
	}
	c.Answered(head.status, head.contentType, head.contentEncoding)
}

// relayBody passes a chunk of the response on.
func (c *call) relayBody(b *extprocv3.HttpBody) error {
	if b.GetEndOfStream() {
		c.phase = ended
	}
	return c.Relay(b.GetBody(), b.GetEndOfStream(), c.sender(fieldResponsePassed))
}

// passBody passes a chunk of an upgraded request on.
func (c *call) passBody(b *extprocv3.HttpBody) error {
	c.passing = !b.GetEndOfStream()
	return c.Pass(b.GetBody(), b.GetEndOfStream(), c.sender(fieldRequestPassed))
}

// sender returns what sends a chunk of a body back as it came, in pieces.
func (c *call) sender(of protowire.Number) func(chunk []byte, end bool) error {
	return func(chunk []byte, end bool) error { return chunks([][]byte{chunk}, end, c.pass(of)) }
}

// pass returns what sends a piece of a body, fieldRequestPassed or fieldResponsePassed.
func (c *call) pass(of protowire.Number) func(piece []byte, end bool) error {
	return func(piece []byte, end bool) error { return c.stream.SendMsg(&passed{of, piece, end}) }
}
