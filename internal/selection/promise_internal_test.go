package selection

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// TestProbeIsDoneOnce: a probe with a target and a deadline counts once: as in time if both are, and as late if one is not. Of those
// that are refused, one of 32 is a probe, and after one in time one of 16: see ttft.Probes.
func TestProbeIsDoneOnce(t *testing.T) {
	const target, deadline = time.Second, time.Minute
	for name, tt := range map[string]struct {
		first, ends time.Duration // since the request
		refused     int           // before the next probe
	}{
		"in time":             {target / 2, deadline / 2, 15},
		"a late first token":  {2 * target, deadline / 2, 31},
		"a late answer":       {target / 2, 2 * deadline, 31},
		"both are too late":   {2 * target, 2 * deadline, 31},
		"no sign but the end": {0, target / 2, 15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var probes ttft.Probes
				begin := time.Now()
				p := &promise{counts: new(counts.Promises), probes: &probes, firstToken: begin.Add(target), deadline: begin.Add(deadline)}
				if time.Sleep(tt.first); tt.first > 0 {
					p.firstTokenCame()
				}
				time.Sleep(tt.ends - tt.first)
				p.ended(true)
				n := 0
				for ; !probes.Due(); n++ {
				}
				if n != tt.refused {
					t.Errorf("%d requests are refused before another probe, want %d", n, tt.refused)
				}
			})
		})
	}
}
