package extproc

import (
	"context"
	"io"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// leaving is a stream whose client leaves while its request is placed.
type leaving struct {
	grpc.ServerStream

	t    *testing.T
	sent []*extprocv3.ProcessingResponse
}

func (l *leaving) Context() context.Context { return l.t.Context() }

func (*leaving) Recv() (*extprocv3.ProcessingRequest, error) { return nil, io.EOF }

func (l *leaving) Send(m *extprocv3.ProcessingResponse) error {
	l.sent = append(l.sent, m)
	return nil
}

// TestGoneWhilePlaced: a request whose client leaves while it waits for an engine is over and not refused.
func TestGoneWhilePlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, func(c *node.Config) { c.Scopes.Admission = admission.Config{Threshold: new(0.5)} })
		w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) }))
		w.Burden("load", 1, 0, 1, 16)
		g := gateway.New(gateway.Config{
			Models:     map[string]catalog.Scope{"m": servicetest.Scope},
			MaxStreams: 1, MaxBody: 1 << 10, PickTimeout: time.Minute, Lease: time.Minute, Metrics: counts.NewGateway(), Log: zerolog.Nop(),
		}, gateway.Service{Selecting: w.API, Catalog: w.Catalog(), Ready: func() bool { return true }})
		stream := &leaving{t: t}
		c := call{ability: new(ability), Exchange: g.Open(counts.ExtProc, nil), server: New(Config{MaxStreams: 1, Log: zerolog.Nop()}, g), stream: stream, phase: readingRequest}
		defer c.Close()
		c.Begin(g.ReadHead(maps.All(map[string]string{":method": "POST", ":path": "/v1/completions"})), tracing.Context{})
		if bad := c.Add([]byte(`{"model":"m","prompt":[1,2,3,4,5]}`)); bad != nil {
			t.Fatal(bad)
		}
		done, err := c.place(bodyThenEnd)
		if done || err != nil || len(stream.sent) > 0 {
			t.Errorf("done %t, %v, sent %v", done, err, stream.sent)
		}
		if _, err := c.receive(); err != io.EOF { //nolint:errorlint // as it came
			t.Errorf("then comes %v", err)
		}
	})
}
