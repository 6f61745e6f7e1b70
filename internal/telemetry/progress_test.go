package telemetry

import (
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/internal/workers/workersfile"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/recovery"
)

// wantLines checks lines of a scrape.
func wantLines(t *testing.T, body string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("no %s", line)
		}
	}
}

// TestRecovery: one stage is the present one, and skipped entries are shown by
// every reason.
func TestRecovery(t *testing.T) {
	report := recovery.Report{}
	report.Events, report.Skipped[1] = 7, 3
	body := scrape(t, Handler("", false, Recovery{
		Stages:   []string{"fetching", "applied"},
		Progress: func() (string, recovery.Report) { return "applied", report },
	}))
	wantLines(t, body,
		`select_service_recovery_stage{stage="fetching"} 0`,
		`select_service_recovery_stage{stage="applied"} 1`,
		`select_service_recovery_entries_total 7`,
		`select_service_recovery_skipped_total{reason="`+recovery.Reason(0).String()+`"} 0`,
		`select_service_recovery_skipped_total{reason="`+recovery.Reason(1).String()+`"} 3`,
	)
}

// TestWorkersFile: a file that has not changed has no change of either outcome.
func TestWorkersFile(t *testing.T) {
	w := workersfile.NewWatcher("workers.yaml", new(workersfile.File), zerolog.Nop())
	wantLines(t, scrape(t, Handler("", false, WorkersFile{Watcher: w})),
		`select_service_workers_file_changes_total{outcome="applied"} 0`,
		`select_service_workers_file_changes_total{outcome="failed"} 0`,
		`select_service_workers_file_stale 0`,
	)
}

// TestSelectionsThatWait: a selection counts as queued while it waits, for the
// model and its endpoint, and its wait is observed. The selections of models that
// the catalog lacks have no model.
func TestSelectionsThatWait(t *testing.T) {
	s := counts.NewSelections(catalog.New(catalog.Settings{}, nil))
	m := s.Of("unknown")
	if m != s.Others() {
		t.Fatal("a model that the catalog lacks has counts of its own")
	}
	m.Issued(counts.RouteReserve)
	m.Queued(counts.RouteReserve, 1)
	wantLines(t, scrape(t, Handler("", false, s)),
		`dynamo_queued_requests{endpoint="select_and_reserve",model=""} 1`,
		`dynamo_queued_requests{endpoint="select",model=""} 0`,
		`dynamo_frontend_queued_requests{model=""} 1`,
	)
	m.Queued(counts.RouteReserve, -1)
	m.Waited(3*time.Second, metrics.Example{})
	m.Ended(counts.QueueFull, counts.RouteReserve, nil)
	wantLines(t, scrape(t, Handler("", false, s)),
		`dynamo_queued_requests{endpoint="select_and_reserve",model=""} 0`,
		`select_service_queue_wait_seconds_sum{model_name=""} 3`,
		`select_service_rejections_total{cause="queue_limit",model_name=""} 1`,
		`select_service_selections_total{model_name="",outcome="queue_full"} 1`,
	)
}
