package selection_test

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

// pair starts two replicas that follow each other.
func pair(t testing.TB, change ...func(*node.Config)) (a, b *world) {
	t.Helper()
	first, second := servicetest.Pair(t, change...)
	return &world{first}, &world{second}
}

// What servicetest has, by the names that it has here.
var (
	scope     = servicetest.Scope
	record    = servicetest.Record
	address   = servicetest.Address
	prompt    = servicetest.Prompt
	sequence  = servicetest.Sequence
	limits    = servicetest.Limits
	total     = servicetest.Total
	queueing  = servicetest.Queueing
	sum       = servicetest.Sum
	ask       = servicetest.Ask
	wantError = servicetest.WantError
	eventsOff = servicetest.EventsOff
	hashes    = servicetest.Hashes
	adding    = servicetest.SlotsReservation

	policyFile = servicetest.Policies
	policyType = servicetest.Policy
)

type dict = servicetest.Dict

const blockSize = servicetest.BlockSize
