package telemetry_test

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
	scope        = servicetest.Scope
	record       = servicetest.Record
	registration = servicetest.Registration
	instance     = servicetest.Instance
	endpoint     = servicetest.Endpoint
	ask          = servicetest.Ask
	prompt       = servicetest.Prompt
	cleared      = servicetest.Cleared
	sum          = servicetest.Sum
	wantError    = servicetest.WantError
	eventsOff    = servicetest.EventsOff
	limits       = servicetest.Limits
	total        = servicetest.Total
	ofModel      = servicetest.OfModel
	queueing     = servicetest.Queueing
)

type (
	dict    = servicetest.Dict
	list    = servicetest.List
	sample  = servicetest.Sample
	scraped = servicetest.Scraped
)

const blockSize = servicetest.BlockSize
