package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestLimits: ids, names and texts of up to 64 KiB and prompts of up to 2^48 tokens
// are taken; beyond that the request is refused, says which limit, and is counted.
// Token sums of the slot tracker saturate instead (decision S3).
func TestLimits(t *testing.T) {
	const prompt = `"token_ids":[1],`
	bodies := []struct {
		path, body string // %s is the value
		limit      string // that the value exceeds
	}{
		{"/select", `{"isl_tokens":%s}`, contract.LimitISLTokens},
		{"/select_and_reserve", `{"isl_tokens":%s}`, contract.LimitISLTokens},
		{"/overlap_scores", `{"isl_tokens":%s}`, contract.LimitISLTokens},
		{"/potential_loads", `{"isl_tokens":%s}`, contract.LimitISLTokens},
		{"/reservations", `{"reservation_id":"r","worker_id":1,"isl_tokens":%s}`, contract.LimitISLTokens},
		{"/select", `{` + prompt + `"selection_id":%s}`, contract.LimitText},
		{"/select_and_reserve", `{` + prompt + `"selection_id":%s}`, contract.LimitText},
		{"/v1.3/select_and_reserve", `{` + prompt + `"reservation_id":%s}`, contract.LimitText},
		{"/v1.6/select_and_reserve", `{` + prompt + `"reservation_id":%s}`, contract.LimitText},
		{"/v1.6/select", `{` + prompt + `"session_id":%s}`, contract.LimitText},
		{"/v1.6/select", `{` + prompt + `"session_context":{"session_id":%s}}`, contract.LimitText},
		{"/select", `{` + prompt + `"model_name":%s}`, contract.LimitText},
		{"/select", `{` + prompt + `"tenant_id":%s}`, contract.LimitText},
		{"/select", `{` + prompt + `"lora_name":%s}`, contract.LimitText},
		{"/select", `{` + prompt + `"cache_salt":%s}`, contract.LimitText},
		{"/select", `{` + prompt + `"routing_constraints":{"required_taints":[%s]}}`, contract.LimitText},
		{"/v1.3/reservations", `{` + prompt + `"worker_id":1,"reservation_id":%s}`, contract.LimitText},
		{"/v1.6/reservations", `{` + prompt + `"worker_id":1,"selection_id":%s}`, contract.LimitText},
		{"/slots/add", `{"model_name":"m","worker_id":1,"dp_rank":0,"sequence_hashes":[1],"request_id":%s}`, contract.LimitText},
		{"/slots/free", `{"model_name":"m","request_id":%s}`, contract.LimitText},
		{"/slots/prefill_complete", `{"model_name":"m","request_id":%s}`, contract.LimitText},
		{"/slots/register", `{"worker_id":1,"block_size":4,"dp_start":0,"dp_size":1,"model_name":%s}`, contract.LimitText},
		{"/busy_threshold", `{"model":%s}`, contract.LimitText},
		{"/workers", `{"worker_id":1,"endpoint":%s}`, contract.LimitText},
		{"/replica_sync/register_peer", `{"endpoint":%s}`, contract.LimitText},
	}
	values := map[string][2]string{ // the largest that is taken, and the next one
		contract.LimitISLTokens: {"281474976710656", "281474976710657"},
		contract.LimitText:      {`"` + strings.Repeat("é", 32<<10) + `"`, `"` + strings.Repeat("é", 32<<10) + `x"`},
	}
	header := http.Header{"Content-Type": {"application/json"}}
	requests := newRecorder()
	h := New(&fake{worker: new(catalog.Worker)}, nil, Options{Requests: requests})
	for _, tt := range bodies {
		v := values[tt.limit]
		if w := call(t, h, "POST", tt.path, fmt.Sprintf(tt.body, v[0]), header); w.Code >= 400 {
			t.Errorf("%s %.60s: the limit itself is %d: %.300s", tt.path, tt.body, w.Code, w.Body)
		}
		requests.refused = nil
		w := call(t, h, "POST", tt.path, fmt.Sprintf(tt.body, v[1]), header)
		_, maximum, named := strings.Cut(w.Body.String(), "the maximum is ")
		if w.Code/100 != 4 || !named || !slices.Equal(requests.refused, []string{tt.limit}) {
			t.Errorf("%s %.60s: %d, maximum %.20q, counted for %q: %.300s", tt.path, tt.body, w.Code, maximum, requests.refused, w.Body)
		}
	}
	if w := call(t, h, "POST", "/slots/add", `{"model_name":"m","worker_id":1,"dp_rank":0,"sequence_hashes":[1],"request_id":"r","new_isl_tokens":18446744073709551615}`, header); w.Code != http.StatusCreated {
		t.Errorf("new_isl_tokens of 2^64-1: %d: %s", w.Code, w.Body)
	}
	long := strings.Repeat("x", contract.MaxText+1)
	for _, c := range [][2]string{
		{"DELETE", "/reservations/" + long},
		{"POST", "/reservations/" + long + "/renew"},
		{"POST", "/reservations/" + long + "/prefill_complete"},
		{"POST", "/reservations/" + long + "/output_block"},
	} {
		if w := call(t, h, c[0], c[1], "{}", header); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "the maximum is 65536") {
			t.Errorf("%s with a long id: %d: %.300s", c[0], w.Code, w.Body)
		}
	}
}
