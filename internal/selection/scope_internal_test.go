package selection

import (
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// TestDropOverloadedTwice: a request that is served again is judged by the workers
// of that moment, without those that it saw before.
func TestDropOverloadedTwice(t *testing.T) {
	busy := overload.NewTable(overload.Thresholds{PrefillTokens: new(uint64)}, func(string) bool { return true })
	c := scope{request: &request{
		SelectRequest: new(SelectRequest), api: &API{thresholds: thresholds{busy: busy}, reports: new(reports.Reports)},
	}}
	for id := range uint64(2) {
		c.eligible = []catalog.Entry{{Rank: catalog.Rank{Worker: id}, Worker: new(catalog.Worker)}}
		ranks, err := c.dropOverloaded(new(reservations.View))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ranks, c.eligible) {
			t.Errorf("ranks to score: %v, want %v", ranks, c.eligible)
		}
	}
}
