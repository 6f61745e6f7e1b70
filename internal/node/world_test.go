package node_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/test/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a servicetest.World with the calls of this package's tests.
type world struct{ *servicetest.World }

// start runs a service until the end of the test.
func start(t testing.TB, change ...func(*node.Config)) *world {
	t.Helper()
	return &world{servicetest.Start(t, change...)}
}

// What servicetest has, by the names that it has here.
var (
	scope      = servicetest.Scope
	record     = servicetest.Record
	endpoint   = servicetest.Endpoint
	address    = servicetest.Address
	prompt     = servicetest.Prompt
	local      = servicetest.Local
	cleared    = servicetest.Cleared
	sum        = servicetest.Sum
	ask        = servicetest.Ask
	wantError  = servicetest.WantError
	eventsOff  = servicetest.EventsOff
	errRefused = servicetest.ErrRefused
	endpoints  = servicetest.Endpoints
	batch      = servicetest.Batch
	adding     = servicetest.SlotsReservation
)

type dict = servicetest.Dict

const blockSize = servicetest.BlockSize
