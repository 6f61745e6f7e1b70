package gateway

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestGoneWhilePlaced: a request whose client leaves is over and not refused, whatever could not be done
// for that reason: here no address of a subset is known.
func TestGoneWhilePlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		g := New(Config{
			Models:     map[string]catalog.Scope{"m": servicetest.Scope},
			MaxStreams: 1, PickTimeout: time.Minute, Lease: time.Minute, Metrics: counts.NewGateway(), Log: zerolog.Nop(),
		}, Service{Selecting: w.API, Catalog: w.Catalog(), Ready: func() bool { return true }})
		g.picker.endpoints.lookUp = func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		x := g.Open(counts.ExtProc, nil)
		defer x.Close()
		x.Head.Subset = SubsetOf("10.0.0.1")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if p, bad := x.Place(ctx, 0); p != nil || !bad.Gone() {
			t.Errorf("placed %v, %v", p, bad)
		}
	})
}
