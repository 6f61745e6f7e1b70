package httpapi

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/replicasync"
)

// TestSnapshotQuery: a page's bounds reach the service, bad ones do not.
func TestSnapshotQuery(t *testing.T) {
	const badLimit = "Failed to deserialize query string: limit: expected an integer from 1 to 10000"
	f := &fake{dump: `{"bookings":[]}`}
	h := newHandler(f)
	for query, want := range map[string]struct {
		page  replicasync.PageRequest
		fault string
	}{
		"":                              {},
		"?after=&limit=1&x=1&x=2":       {page: replicasync.PageRequest{Limit: 1}},
		"?limit=10000&after=a%2Fb%20+c": {page: replicasync.PageRequest{After: "a/b  c", Limit: 10_000}},
		"?shared=true":                  {page: replicasync.PageRequest{Shared: true}},
		"?shared=false":                 {},
		"?shared=1":                     {fault: "Failed to deserialize query string: shared: expected true or false"},
		"?limit=0":                      {fault: badLimit},
		"?limit=10001":                  {fault: badLimit},
		"?limit=":                       {fault: badLimit},
		"?limit=1e3":                    {fault: badLimit},
		"?limit=99999999999999999999":   {fault: badLimit},
		"?limit=1&limit=1":              {fault: "Failed to deserialize query string: duplicate field `limit`"},
		"?after=a&after=b":              {fault: "Failed to deserialize query string: duplicate field `after`"},
	} {
		f.page = replicasync.PageRequest{Limit: -1}
		w := call(t, h, "GET", "/replica_sync/snapshot"+query, "", nil)
		if want.fault != "" {
			if w.Code != 400 || errorText(t, w) != want.fault || f.page.Limit != -1 {
				t.Errorf("%s: %d %s", query, w.Code, w.Body)
			}
			continue
		}
		if w.Code != 200 || w.Body.String() != f.dump || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
		if f.page != want.page {
			t.Errorf("%s: %+v", query, f.page)
		}
	}
	refused := newHandler(&fake{err: &contract.Error{Kind: contract.Conflict, Text: "replica sync is disabled"}})
	if w := call(t, refused, "GET", "/replica_sync/snapshot", "", nil); w.Code != 409 || errorText(t, w) != "replica sync is disabled" {
		t.Errorf("disabled: %d %s", w.Code, w.Body)
	}
}

// TestBrokenSnapshot: a page that fails in the middle must not look complete.
func TestBrokenSnapshot(t *testing.T) {
	base := start(t, &fake{dump: strings.Repeat("x", 1<<20), err: errors.New("lost")})
	resp, err := fetchAll(t, base+"/replica_sync/snapshot?after="+url.QueryEscape("a b"))
	if err == nil {
		t.Errorf("a broken page of %d bytes reads to its end", len(resp))
	}
}

// TestDumpWhileRecovering: a replica that asks is told that more may come.
func TestDumpWhileRecovering(t *testing.T) {
	f := &fake{dump: "{}"}
	h := newHandler(f)
	for _, recovering := range []bool{true, false} {
		f.recovering = recovering
		for _, method := range []string{"GET", "HEAD"} {
			want := map[bool]string{true: "true"}[recovering]
			if w := call(t, h, method, "/dump", "", nil); w.Code != 200 || w.Header().Get("X-Select-Service-Recovering") != want {
				t.Errorf("%s while recovering=%t: %d, header %v", method, recovering, w.Code, w.Header())
			}
		}
	}
}

// TestReadyWhileRecovering: stage and progress are in the body only with peers
// to recover from (decision S6).
func TestReadyWhileRecovering(t *testing.T) {
	f := &fake{}
	h := newHandler(f)
	if w := call(t, h, "GET", "/ready", "", nil); strings.Contains(w.Body.String(), "recovery") {
		t.Errorf("without peers: %s", w.Body)
	}
	f.recovery = &node.RecoveryStatus{Stage: node.RecoveryDeadline, Peer: "http://b:8092", Entries: 3, Blocks: maxU64, Skipped: 1, Complete: true, Loads: node.LoadsAwaited}
	golden(t, "ready_recovering", call(t, h, "GET", "/ready", "", nil))
	f.recovery = new(node.RecoveryStatus)
	golden(t, "ready_recovery_begins", call(t, h, "GET", "/ready", "", nil))
}
