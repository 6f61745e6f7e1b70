package httpapi

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestWithoutSession: sessions that are on change no byte of the answers to requests that name none, and a session that a request names
// changes no byte of an answer but of explanations.
func TestWithoutSession(t *testing.T) {
	const explained = `/v1.6/explain "allowed_worker_ids":[1]`
	answers := func(ttl time.Duration, named string) map[string]string {
		w := servicetest.Start(t, func(c *node.Config) { c.Selection.SessionTTL = ttl })
		for id := range uint64(2) {
			w.Put(servicetest.Record(id, 1))
		}
		h := New(w.UseCases, nil, Options{})
		texts := map[string]string{}
		for _, call16 := range [][2]string{
			{"/v1.6/select", `"allowed_worker_ids":[1]`},
			{"/v1.6/select", `"selection_id":"p","allowed_worker_ids":[1],"advisory":true`},
			{"/v1.6/select_and_reserve", `"selection_id":"r","allowed_worker_ids":[1],"lease_seconds":30`},
			{"/v1.6/select", `"allowed_worker_ids":[9]`},
			{"/v1.6/select", `"allowed_worker_ids":7`},
			{"/v1.6/explain", `"allowed_worker_ids":[1]`},
		} {
			body := `{"model_name":"m","routing_group":"t","token_ids":[1,2,3,4],` + call16[1] + named + `}`
			a := call(t, h, "POST", call16[0], body, nil)
			texts[call16[0]+" "+call16[1]] = strconv.Itoa(a.Code) + " " + a.Body.String()
		}
		return texts
	}
	off := answers(0, "")
	if reserved := off[`/v1.6/select_and_reserve "selection_id":"r","allowed_worker_ids":[1],"lease_seconds":30`]; !strings.HasPrefix(reserved, "200 ") {
		t.Fatalf("not booked: %s", reserved)
	}
	for name, other := range map[string]map[string]string{
		"sessions are on":                  answers(time.Minute, ""),
		"a session is named, they are off": answers(0, `,"session_context":{"session_id":"s","parent_session_id":"\u0001p","session_final":true,"agent_headers":{"x-session-id":["\u0002"]}}`),
		"a session is named, they are on":  answers(time.Minute, `,"session_id":"s"`),
	} {
		if name != "sessions are on" {
			delete(other, explained)
		}
		for call, want := range off {
			if got, asked := other[call]; asked && got != want {
				t.Errorf("%s: %s answers %s, want %s", name, call, got, want)
			}
		}
	}
}
