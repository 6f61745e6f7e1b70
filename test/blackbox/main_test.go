package blackbox_test

import (
	"testing"

	"github.com/select-service/select-service/test/procs"
)

func TestMain(m *testing.M) { procs.Main(m) }
