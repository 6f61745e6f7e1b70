package client_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain proves that closed clients leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
