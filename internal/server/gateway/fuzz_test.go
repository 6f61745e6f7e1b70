package gateway_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/node"
)

// script is a stream whose messages are a list: no network is between.
type script struct {
	grpc.ServerStream

	ctx    context.Context
	cancel func()
	// placed is closed when the request was answered, done when the call has returned.
	placed, done chan struct{}
	once         sync.Once
	broken       bool          // it ends with an error
	hold         chan struct{} // if not nil, it ends when this is closed

	mu    sync.Mutex // guards what follows
	steps []step
	whole bool // the request has come in full: what follows waits for its answer
	over  bool // there was a response: nothing waits any more
}

// step is one message; early: it does not wait for the answer to the request.
type step struct {
	message *extprocv3.ProcessingRequest
	early   bool
}

func newScript(steps []step) *script {
	s := &script{placed: make(chan struct{}), done: make(chan struct{}), steps: steps}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *script) Context() context.Context { return s.ctx }

func (s *script) Send(m *extprocv3.ProcessingResponse) error {
	if m.GetRequestHeaders() != nil || m.GetImmediateResponse() != nil {
		s.once.Do(func() { close(s.placed) })
	}
	return s.ctx.Err()
}

// SendMsg takes the pieces of bodies, which are no messages of Envoy's definition.
func (s *script) SendMsg(any) error { return s.ctx.Err() }

func (s *script) Recv() (*extprocv3.ProcessingRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.steps) == 0 {
		if s.hold != nil {
			<-s.hold
		}
		if s.broken {
			s.cancel()
			return nil, context.Canceled
		}
		return nil, io.EOF
	}
	next := s.steps[0]
	s.steps = s.steps[1:]
	if s.whole && !s.over && !next.early {
		select {
		case <-s.placed:
		case <-s.done:
			return nil, io.EOF
		}
	}
	switch next.message.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_ResponseHeaders, *extprocv3.ProcessingRequest_ResponseBody, *extprocv3.ProcessingRequest_ResponseTrailers:
		s.over = true
	}
	s.whole = s.whole || next.message.GetRequestHeaders().GetEndOfStream() || next.message.GetRequestBody().GetEndOfStream() || next.message.GetRequestTrailers() != nil
	return next.message, nil
}

// steps are the messages that a script is made of.
var steps = func() (all []*extprocv3.ProcessingRequest) {
	headers := func(end bool, fields ...string) *extprocv3.HttpHeaders {
		return &extprocv3.HttpHeaders{Headers: headerMap(fields), EndOfStream: end}
	}
	request := func(h *extprocv3.HttpHeaders) {
		all = append(all, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}, ProtocolConfig: duplex()})
	}
	request(headers(false, ":method", "POST", ":path", completionsPath))
	request(headers(true, ":method", "GET", ":path", "/v1/models"))
	request(headers(true, ":method", "POST", ":path", chatPath))
	request(headers(false, ":method", "POST", ":path", "/v1/embeddings"))
	body := func(text string, end bool) {
		all = append(all, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end}}})
	}
	body(`{"model":"m","stream":true,"prompt":[1,2,3,4,5,6,7,8,9]}`, true)
	body(`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`, false)
	body(``, true)
	body(`}`, false)
	all = append(all,
		&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}},
		&extprocv3.ProcessingRequest{},
	)
	response := func(served string, end bool, fields ...string) {
		m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers(end, fields...)}}
		if served != "" {
			m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				"envoy.lb": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-served": structpb.NewStringValue(served)}},
			}}
		}
		all = append(all, m)
	}
	response("", false, ":status", "200", "content-type", sse)
	response(at(2), false, ":status", "200", "content-type", sse)
	response("1.1.1.1:1", false, ":status", "200", "content-type", "application/json")
	response("", true, ":status", "503")
	piece := func(text string, end bool) {
		all = append(all, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end}}})
	}
	piece(strings.Repeat(event("a"), 9), false)
	piece(`data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}`+"\n\n", false)
	piece("", true)
	piece("data: [DO", false)
	all = append(all, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}})
	request(headers(false, ":method", "GET", ":path", "/v1/realtime", "upgrade", "websocket"))
	return all
}()

// FuzzExchange plays messages in any order, with early ends and breaks: no panic, and nothing
// stays booked. Each byte is a message; its highest bit has it come before the answer to the
// request, and the first byte breaks the stream at the end if it is odd.
func FuzzExchange(f *testing.F) {
	f.Add([]byte("\x00\x00\x04\x0a\x0e\x0f\x10"))         // a streamed completion
	f.Add([]byte("\x01\x00\x05\x08\x0b\x0e"))             // with trailers, moved and broken
	f.Add([]byte("\x00\x00\x04\x8d"))                     // a response while it is picked
	f.Add([]byte("\x00\x01\x0c\x11\x12"))                 // GET
	f.Add([]byte("\x00\x00\x00\x04\x04\x0a\x0a\x10\x10")) // everything twice
	f.Add([]byte("\x00\x13\x87\x0a\x07\x0e\x06\x10"))     // an upgrade, whose first frame is early
	w := start(f, func(_ *node.Config, c *settings) { c.Tokenizer = nil })
	w.put(1, 1)
	w.put(2, 1)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 || len(text) > 40 {
			return
		}
		var all []step
		for _, b := range text[1:] {
			all = append(all, step{message: steps[int(b&0x7f)%len(steps)], early: b&0x80 != 0})
		}
		s := newScript(all)
		s.broken = text[0]&1 == 1
		defer s.cancel()
		if err := w.server.Process(s); err != nil && errors.Is(err, io.EOF) {
			t.Errorf("ended with %v", err)
		}
		close(s.done)
		if got := w.loads(); got != "1/0: 0 0 0; 2/0: 0 0 0" {
			t.Fatalf("%x: loads are %s", text, got)
		}
		for _, line := range w.log.Take(t) {
			if strings.HasPrefix(line, "error") {
				t.Fatalf("%x: %s", text, line)
			}
		}
	})
}
