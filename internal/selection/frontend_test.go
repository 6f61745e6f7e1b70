package selection_test

import (
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestSharedFrontend proves for policies of each kind that a prompt whose rank the worker's own
// frontend picks is booked on the least loaded of its ranks, with the overlap of the worst.
func TestSharedFrontend(t *testing.T) {
	for _, kind := range []string{"dynamo-default-cost-fn", "round-robin", "random", "least-loaded", "predicted-ttft"} {
		t.Run(kind, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.Policy(t, kind, ""))
			w.Put(servicetest.Record(1, 3))
			p := servicetest.Prompt(1, 4*servicetest.BlockSize)
			for dp, blocks := range []int{4, 1, 2} {
				e := w.Engine(1, uint32(dp))
				e.Publish(uint32(dp), e.Stored(p[:blocks*servicetest.BlockSize], servicetest.BlockSize, nil))
			}
			w.Settle()
			w.Burden("b0", 1, 0, 50, 50)
			w.Burden("b1", 1, 1, 50, 50)
			for range 4 { // a policy that turns or draws may begin anywhere
				req := servicetest.Ask(p)
				req.SharesFrontend = func(catalog.Entry) bool { return true }
				s, err := w.Select(t.Context(), req, true)
				if err != nil {
					t.Fatal(err)
				}
				if want := (catalog.Rank{Worker: 1, DP: 2}); s.Rank != want || s.EffectivePrefillTokens != 3*servicetest.BlockSize {
					t.Errorf("rank %v with %d tokens to prefill, want %v with %d", s.Rank, s.EffectivePrefillTokens, want, 3*servicetest.BlockSize)
				}
				if err := w.Free(*s.ReservationID); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
