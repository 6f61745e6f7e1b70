package httpapi

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestPairBody: every member of the body of /select_pair, and what is refused.
func TestPairBody(t *testing.T) {
	f := &fake{}
	const body = `{"token_ids":[1,2],"expected_output_tokens":7,"priority_jump":1.5,"strict_priority":2,"explain":true,"lease_seconds":3,"if_exists":"return",
		"prefill":{"pinned_worker":{"worker_id":1,"dp_rank":2},"allowed_worker_ids":[1],"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":1}}},
		"decode":{"pinned_worker":{"worker_id":3,"dp_rank":4},"allowed_worker_ids":[3],"routing_constraints":{"required_taints":["c"]}},
		"conditional":{"max_uncached_tokens":2048,"max_uncached_share":0.7},`
	for _, s := range speakers(f) {
		id, session := `"reservation_id":"p"}`, ""
		if s.d == dialect16 {
			id, session = `"selection_id":"p","session_id":"s"}`, "s"
		}
		header := http.Header{"Content-Type": {"application/json"}, "X-Tenant-Id": {"payer"}}
		if w := call(t, s, "POST", s.prefix+"/select_pair", body+id, header); w.Code != 200 {
			t.Fatalf("%s: %d %s", s.name, w.Code, w.Body)
		}
		want := selection.PairRequest{
			SelectRequest: selection.SelectRequest{
				Scope: catalog.Scope{Model: "default", Tenant: "default"}, ReservationID: new("p"),
				Prompt: selection.Prompt{TokenIDs: []uint32{1, 2}, HasTokenIDs: true}, ExpectedOutputTokens: new(uint32(7)), PriorityJump: 1.5, StrictPriority: 2,
				Explain: true, Lease: 3 * time.Second, IfExists: selection.ReturnFirst, Session: session, FairTenant: "payer", Dialect: contract.Version(s.d),
				Constraints: selection.Constraints{
					Pinned: &catalog.Rank{Worker: 3, DP: 4}, AllowedWorkers: []uint64{3}, HasAllowedWorkers: true, RequiredTaints: []string{"c"},
				},
			},
			Prefill: selection.Constraints{
				Pinned: &catalog.Rank{Worker: 1, DP: 2}, AllowedWorkers: []uint64{1}, HasAllowedWorkers: true,
				RequiredTaints: []string{"a"}, PreferredTaints: map[string]float32{"b": 1},
			},
			Conditional: &selection.Conditional{MaxUncachedTokens: new(uint64(2048)), MaxUncachedShare: new(0.7)},
		}
		if s.d == dialect16 {
			want.SelectionID, want.Hint = want.ReservationID, selection.HintInAnswer
		}
		f.paired.Prompt.TokenIDs = []uint32{1, 2} // lent
		if diff := cmp.Diff(want, f.paired); diff != "" {
			t.Errorf("%s: %s", s.name, diff)
		}
		for bad, status := range map[string]int{
			`{"prefill":7}`: 422, `{"decode":{"pinned_worker":{"worker_id":1}}}`: 422, `{"conditional":{"max_uncached_tokens":-1}}`: 422,
			`{"if_exists":"return"}`: 400, `{"lease_seconds":0}`: 400,
		} {
			if w := call(t, s, "POST", s.prefix+"/select_pair", bad, nil); w.Code != status {
				t.Errorf("%s %s: %d %s", s.name, bad, w.Code, w.Body)
			}
		}
	}
}
