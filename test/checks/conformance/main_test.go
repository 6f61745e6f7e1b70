package conformance_test

import (
	"flag"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// atOnce is how many services run at the same time: a scenario waits far more than
// it computes. Alone there are few, because then the time of an answer is judged.
func atOnce() string {
	if e2e.Alone() {
		return "2"
	}
	return "16"
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce()); err != nil {
		panic(err)
	}
	e2e.Main(m)
}
