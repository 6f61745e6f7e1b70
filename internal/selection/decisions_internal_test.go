package selection

import (
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestDecisionsMemory: a decision that has made room for others takes no memory for its
// ranks, but what becomes of it is compared with what was predicted.
func TestDecisionsMemory(t *testing.T) {
	d := &decisions{limit: 1 << 16, seed: maphash.MakeSeed(), errors: metrics.NewHistogram(metrics.ErrorRatioBounds)}
	const ranks, n = 100, 1000
	for i := range n {
		d.keep(&Decision{
			decided:       &decided{ranks: make([]catalog.Rank, ranks)},
			ReservationID: fmt.Sprint(i), Reserved: true, PredictedTTFT: 1,
			times: new(scopes.FirstTokens),
		})
	}
	var reachable int64
	gone := ""
	for i := range d.byID {
		switch x := d.byID[i].Load(); {
		case x == nil:
		case x.decided != nil:
			reachable += x.size()
		default:
			gone = x.ReservationID
		}
	}
	if reachable == 0 || reachable > d.limit || d.size() > d.limit {
		t.Errorf("%d bytes of decisions can be reached, %d are counted, the limit is %d", reachable, d.size(), d.limit)
	}
	d.completed(gone)
	d.freed(gone)
	if d.errors.Count() != 1 {
		t.Error("the prediction of a decision that has gone is not compared")
	}
}
