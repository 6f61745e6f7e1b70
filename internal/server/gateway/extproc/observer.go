package extproc

import (
	"crypto/rand"
	"errors"
	"io"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// observeKey is the metadata, in lbNamespace, by which the stream of a second filter names the call of the first
// one for the same request: its key in observed.
const observeKey = "x-gateway-observe"

// observed has the calls whose answers a second filter (observability_mode) may show, by a random key. A call
// is in it until its end.
type observed struct {
	mu    sync.Mutex
	calls map[string]*call
}

// add gives a call a key.
func (o *observed) add(c *call) (key string) {
	key = rand.Text()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls == nil {
		o.calls = make(map[string]*call)
	}
	o.calls[key] = c
	return key
}

func (o *observed) get(key string) *call {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls[key]
}

func (o *observed) remove(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.calls, key)
}

// observe follows, on the stream of a second filter, an answer of which the filter that asked for a place gets no
// body. It begins with the answer's headers, and nothing is answered. The stream ends, and Envoy sends no more of
// the answer, with the first token: to follow all of it costs nearly as much as bodies that pass through the
// picker. It ends at once if the request is over, or was placed by another picker.
func (c *call) observe(m *extprocv3.ProcessingRequest) error {
	c.end() // it has no request of its own
	if m.GetResponseHeaders() == nil {
		return status.Errorf(codes.InvalidArgument,
			"%T begins the stream of a filter in observability_mode; processing_mode must have request_header_mode SKIP and response_header_mode SEND", m.GetRequest())
	}
	of := c.server.observed.get(observeKeyOf(m.GetMetadataContext()))
	if of == nil {
		return nil
	}
	for more := of.observeHead(m); more; {
		m, err := c.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		b := m.GetResponseBody() // nil: the trailers
		more = of.observePiece(b.GetBody(), b == nil || b.GetEndOfStream())
	}
	return nil
}

func observeKeyOf(metadata *corev3.Metadata) string {
	return metadata.GetFilterMetadata()[lbNamespace].GetFields()[observeKey].GetStringValue()
}

// observeHead notes the answer's headers that a second filter has sent, and reports whether its body is awaited.
func (c *call) observeHead(m *extprocv3.ProcessingRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.observed || c.phase != awaitingResponse && c.phase != relaying {
		return false
	}
	c.observed = true
	c.ability.observes.Store(true)
	if c.phase == awaitingResponse { // else the first filter has sent the headers too, and sooner
		c.answered(m)
	}
	if m.GetResponseHeaders().GetEndOfStream() {
		c.End()
	}
	return c.Awaits()
}

// observePiece follows a piece of the answer that a second filter has sent, and reports whether more are awaited.
func (c *call) observePiece(piece []byte, end bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.phase == ended {
		return false
	}
	_ = c.Relay(piece, end, func([]byte, bool) error { return nil }) // nothing is passed on
	return c.Awaits()
}
