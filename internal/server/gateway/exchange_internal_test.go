package gateway

import (
	"context"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/servicetest"
)

// leaving is a stream whose client leaves while its request is placed.
type leaving struct {
	grpc.ServerStream

	t    *testing.T
	sent []*extproc.ProcessingResponse
}

func (l *leaving) Context() context.Context { return l.t.Context() }

func (*leaving) Recv() (*extproc.ProcessingRequest, error) { return nil, io.EOF }

func (l *leaving) Send(m *extproc.ProcessingResponse) error {
	l.sent = append(l.sent, m)
	return nil
}

// TestGoneWhilePlaced: a request whose client leaves is over and not refused, whatever could not be done
// for that reason: here no address of a subset is known.
func TestGoneWhilePlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		s := New(Config{
			Models:     map[string]catalog.Scope{"m": servicetest.Scope},
			MaxStreams: 1, PickTimeout: time.Minute, Lease: time.Minute, Metrics: counts.NewGateway(), Log: zerolog.Nop(),
		}, Service{Selecting: w.API, Catalog: w.Catalog(), Ready: func() bool { return true }})
		s.picker.endpoints.lookUp = func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		stream := &leaving{t: t}
		e := exchange{server: s, stream: stream, phase: readingRequest}
		e.head.subset = subset{given: true, of: map[string]bool{"10.0.0.1": true}}
		done, err := e.place(headersOnly)
		if done || err != nil || len(stream.sent) > 0 {
			t.Errorf("done %t, %v, sent %v", done, err, stream.sent)
		}
		if _, err := e.receive(); err != io.EOF { //nolint:errorlint // as it came
			t.Errorf("then comes %v", err)
		}
	})
}
