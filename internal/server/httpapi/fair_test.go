package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection"
)

// TestFairness: who pays for a selection comes in the body and in a header, in both dialects and on both routes. A header
// that is no name counts as missing, a member that is none is refused.
func TestFairness(t *testing.T) {
	f := &fake{}
	long := strings.Repeat("x", 257)
	for _, tt := range []struct {
		member, header string
		id, tenant     string
		status         int
	}{
		{`"x":1`, "", "", "", 200},
		{`"fairness_id":"agent 1"`, " acme ", "agent 1", "acme", 200},
		{`"fairness_id":"` + long[1:] + `"`, long, long[1:], "", 200},
		{`"fairness_id":"` + long + `"`, "acme", "", "", 400},
		{`"fairness_id":7`, "", "", "", 422},
		{`"fairness_id":"a\u0001"`, "", "", "", 400},
		{`"fairness_id":"a\u007f"`, "", "", "", 400},
		{`"fairness_id":"\u0002a"`, "", "", "", 400},
		{`"fairness_id":"a\u0085b"`, "a\u0085b", "a\u0085b", "a\u0085b", 200}, // as the name of a session (identity.FaultOf)
		{`"fairness_id":""`, "a\x01", "", "", 200},
	} {
		for _, s := range speakers(f) {
			for _, path := range []string{"/select", "/select_and_reserve"} {
				var got selection.SelectRequest
				f.call = func() { got = f.selected }
				w := call(t, s, "POST", s.prefix+path, "{"+tt.member+"}", http.Header{"Content-Type": {"application/json"}, "X-Tenant-Id": {tt.header}})
				if w.Code != tt.status || got.FairnessID != tt.id || got.FairTenant != tt.tenant {
					t.Errorf("%s %s %.40s: %d %.80s, %q of %q", s.name, path, tt.member, w.Code, w.Body, got.FairnessID, got.FairTenant)
				}
			}
		}
	}
}
