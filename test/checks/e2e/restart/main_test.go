// Package restart_test kills the service that keeps its state on disk, at any
// moment, and looks at what the next process knows.
package restart_test

import (
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
