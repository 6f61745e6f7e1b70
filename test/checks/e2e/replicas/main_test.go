package replicas_test

import (
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// of returns the full length of a play, or the one with -short.
func of(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}
