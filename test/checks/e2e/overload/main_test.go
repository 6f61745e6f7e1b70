package overload_test

import (
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
