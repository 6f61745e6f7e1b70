package service_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/internal/servicetest"
	"github.com/select-service/select-service/pkg/catalog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a servicetest.World with the calls of this package's tests.
type world struct {
	*servicetest.World
	t   testing.TB
	net *servicetest.Network
	log *servicetest.Log
}

var scope = servicetest.Scope

const blockSize = servicetest.BlockSize

// What servicetest has, by the names that it has here.
var (
	record     = servicetest.Record
	endpoint   = servicetest.Endpoint
	address    = servicetest.Address
	prompt     = servicetest.Prompt
	local      = servicetest.Local
	sequence   = servicetest.Sequence
	cleared    = servicetest.Cleared
	limits     = servicetest.Limits
	total      = servicetest.Total
	queueing   = servicetest.Queueing
	sum        = servicetest.Sum
	ask        = servicetest.Ask
	wantError  = servicetest.WantError
	eventsOff  = servicetest.EventsOff
	errRefused = servicetest.ErrRefused
	endpoints  = servicetest.Endpoints
	batch      = servicetest.Batch
)

type (
	dict = servicetest.Dict
)

// start runs a service until the end of the test.
func start(t testing.TB, change ...func(*service.Config)) *world {
	t.Helper()
	w := servicetest.Start(t, change...)
	return &world{World: w, t: t, net: w.Net, log: w.Log}
}

func (w *world) stop()                            { w.Stop() }
func (w *world) put(r catalog.Record)             { w.t.Helper(); w.Put(r) }
func (w *world) patch(id uint64, p catalog.Patch) { w.t.Helper(); w.Patch(id, p) }
func (w *world) remove(id uint64)                 { w.t.Helper(); w.Remove(id) }
func (w *world) settle()                          { w.t.Helper(); w.Settle() }
func (w *world) wantSeries(want ...string)        { w.t.Helper(); w.WantSeries(want...) }
func (w *world) wantLog(want ...string)           { w.t.Helper(); w.WantLog(want...) }

func (w *world) engine(id uint64, dp uint32) *servicetest.Engine { return w.Engine(id, dp) }

func (w *world) book(id string, tokens []uint32) selecting.Selection {
	w.t.Helper()
	return w.Book(id, tokens)
}

// device returns the device blocks of a prompt by rank, "1/0:4 2/0:0", of all
// ranks that /overlap_scores shows.
func (w *world) device(tokens []uint32) string {
	w.t.Helper()
	w.settle()
	s, err := w.OverlapScores(&selecting.ProjectRequest{Scope: scope, Prompt: ask(tokens).Prompt})
	if err != nil {
		w.t.Fatal(err)
	}
	var rows []string
	for _, r := range s.Rows {
		rows = append(rows, fmt.Sprintf("%d/%d:%d", r.Rank.Worker, r.Rank.DP, r.Device))
	}
	return strings.Join(rows, " ")
}

// load returns the loads of all scopes as "1/0: prefill blocks requests", with
// the scope in front where it is not the usual one, and what waits behind.
func (w *world) load() string {
	var out []string
	for _, sc := range w.Loads(nil, nil) {
		if sc.Scope != scope {
			out = append(out, fmt.Sprintf("%s/%s", sc.Scope.Model, sc.Scope.Tenant))
		}
		for _, l := range sc.Loads {
			out = append(out, fmt.Sprintf("%d/%d: %d %d %d", l.Rank.Worker, l.Rank.DP, l.PrefillTokens, l.DecodeBlocks, l.Requests))
		}
		if sc.PendingCount > 0 {
			out = append(out, fmt.Sprintf("waiting: %d with %d", sc.PendingCount, sc.PendingISLTokens))
		}
	}
	return strings.Join(out, ", ")
}

func (w *world) wantLoad(want string) {
	w.t.Helper()
	if got := w.load(); got != want {
		w.t.Errorf("loads are %q, want %q", got, want)
	}
}

func (w *world) wantDevice(tokens []uint32, want string) {
	w.t.Helper()
	if got := w.device(tokens); got != want {
		w.t.Errorf("device blocks are %q, want %q", got, want)
	}
}
