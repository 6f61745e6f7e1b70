package openapi

import (
	"os"
	"testing"

	"github.com/select-service/select-service/test/procs"
)

func TestMain(m *testing.M) {
	code := m.Run()
	procs.Clean()
	os.Exit(code)
}
