package node_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	engineload "github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// withLoads gives ranks of a record load streams.
func withLoads(endpoints map[uint32]string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.LoadEndpoints = endpoints }
}

// pushLoad sends a LoadStat.
func pushLoad(w *servicetest.World, endpoint string, number uint64, running int) {
	w.T.Helper()
	payload, err := msgpack.Marshal([]any{"LoadStat", running, 0, 0, 0, nil})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Net.At(endpoint).Send([]byte("load"), binary.BigEndian.AppendUint64(nil, number), payload)
}

// TestLoadStreamsFollowTheRecord: load streams open and close with the record, also where KV
// events are off, and a change that cannot be made changes nothing.
func TestLoadStreamsFollowTheRecord(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	live := func(what string, want int) {
		t.Helper()
		if _, n := w.Net.Count(); n != want {
			t.Errorf("%s: %d sockets, want %d", what, n, want)
		}
	}
	w.Put(servicetest.Record(1, 2, withLoads(map[uint32]string{0: "tcp://w:1", 1: "tcp://w:2"})))
	live("two streams", 2)
	pushLoad(w, "tcp://w:2", 0, 3)
	if n := servicetest.Sum(w.Metrics()["load_reports_total"], "push"); n != 1 {
		t.Errorf("%v reports", n)
	}
	w.Patch(1, catalog.Patch{LoadEndpoints: map[uint32]string{1: "tcp://w:2"}})
	live("one less", 1)
	w.Net.Refuse("tcp://*:3", true)
	wk, err := w.PatchWorker(1, catalog.Patch{LoadEndpoints: map[uint32]string{0: "tcp://w:4", 1: "tcp://*:3"}})
	if err != nil || wk.Lifecycle != catalog.Incomplete {
		t.Fatalf("worker is %+v, %v", wk, err)
	}
	live("one cannot be bound", 1)
	pushLoad(w, "tcp://w:2", 1, 4)
	if n := servicetest.Sum(w.Metrics()["load_reports_total"], "push"); n != 2 {
		t.Errorf("%v reports", n)
	}
	w.Net.Refuse("tcp://*:3", false)
	w.Patch(1, catalog.Patch{})
	live("both", 2)
	w.Patch(1, catalog.Patch{Size: new(uint32(1)), LoadEndpoints: map[uint32]string{0: "tcp://w:4"}})
	live("a rank has gone", 1)
	w.Remove(1)
	live("the worker has gone", 0)
}

// TestFailedEventStreamKeepsLoads: if an event stream cannot be opened, the load streams are as
// they were.
func TestFailedEventStreamKeepsLoads(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1, withLoads(map[uint32]string{0: "tcp://w:1"})))
	w.Net.Refuse(servicetest.Endpoint(1, 1), true)
	wk, err := w.PatchWorker(1, catalog.Patch{
		Size: new(uint32(2)), KVEventsEndpoints: servicetest.Endpoints(1, 2), LoadEndpoints: map[uint32]string{0: "tcp://w:8", 1: "tcp://w:9"},
	})
	if err != nil || wk.Lifecycle != catalog.Incomplete {
		t.Fatalf("worker is %+v, %v", wk, err)
	}
	pushLoad(w, "tcp://w:1", 0, 3)
	if n := servicetest.Sum(w.Metrics()["load_reports_total"], "push"); n != 1 {
		t.Errorf("%v reports of the old stream", n)
	}
}

// TestReportLoad: reports that are told count, all or none.
func TestReportLoad(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 2))
	report := func(dps ...uint32) (of []node.RankReport) {
		for _, dp := range dps {
			of = append(of, node.RankReport{DP: dp, Report: engineload.Report{Source: engineload.Told, Running: engineload.Known(3)}})
		}
		return of
	}
	foreign := "other"
	for _, tc := range []struct {
		own    catalog.ScopeFilter
		worker uint64
		ranks  []node.RankReport
		want   string
	}{
		{catalog.ScopeFilter{}, 9, report(0), "worker 9 not found"},
		{catalog.ScopeFilter{Model: &foreign}, 1, report(0), "worker 1 not found"},
		{catalog.ScopeFilter{}, 1, report(0, 2), "worker 1 has no dp_rank 2"},
	} {
		err := w.ReportLoadIn(tc.own, tc.worker, tc.ranks)
		var known *contract.Error
		if !errors.As(err, &known) || known.Kind != contract.NotFound || known.Error() != tc.want {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
	if n := servicetest.Sum(w.Metrics()["load_reports_total"], "told"); n != 0 {
		t.Errorf("%v reports", n)
	}
	if err := w.ReportLoadIn(catalog.ScopeFilter{}, 1, report(0, 1)); err != nil {
		t.Error(err)
	}
	if n := servicetest.Sum(w.Metrics()["load_reports_total"], "told"); n != 2 {
		t.Errorf("%v reports", n)
	}
}
