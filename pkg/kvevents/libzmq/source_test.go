//go:build cgo

package libzmq_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/pkg/kvevents/libzmq"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSource(t *testing.T) {
	zmqtest.TestSource(t, func() zmqtest.Source { return libzmq.New(libzmq.DefaultOptions()) }, libzmq.ErrStopped)
}
