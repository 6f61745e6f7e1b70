package workerid_test

import (
	"testing"

	"github.com/select-service/select-service/internal/workers/workerid"
)

// TestOf proves that ids are those that rustc's DefaultHasher was seen to give.
func TestOf(t *testing.T) {
	for name, want := range map[string]uint64{
		"vllm-0":      1943803597606491,
		"worker-0":    1186445869714687,
		"vllm-0:8001": 3621283254180760,
	} {
		if got := workerid.Of(name); got != want {
			t.Errorf("id of %q is %d, want %d", name, got, want)
		}
	}
}
