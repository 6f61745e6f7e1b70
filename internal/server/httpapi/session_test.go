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

// TestFinalParent: the last request of a session that has started others ends their binding, too, when its reservation ends.
func TestFinalParent(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.Selection.SessionTTL, c.Selection.SessionGroups = time.Minute, true })
	for id := range uint64(2) {
		w.Put(servicetest.Record(id, 1))
	}
	h := New(w.UseCases, nil, Options{})
	book := func(id, session, worker string) {
		t.Helper()
		body := `{"model_name":"m","routing_group":"t","token_ids":[1,2,3,4],"selection_id":"` + id + `","allowed_worker_ids":[` + worker + `],"session_context":{` + session + `}}`
		if a := call(t, h, "POST", "/v1.6/select_and_reserve", body, nil); a.Code != 200 {
			t.Fatalf("%s: %d %s", id, a.Code, a.Body)
		}
	}
	free := func(id string) {
		t.Helper()
		if a := call(t, h, "DELETE", "/v1.6/reservations/"+id, "", nil); a.Code != 200 && a.Code != 204 {
			t.Fatalf("%s: %d %s", id, a.Code, a.Body)
		}
	}
	book("root", `"session_id":"p"`, "0,1")
	book("child", `"session_id":"c","agent_headers":{"x-dynamo-parent-session-id":["ignored"]},"parent_session_id":"p"`, "0")
	free("child")
	book("again", `"session_id":"c","parent_session_id":"p"`, "0,1")
	book("last", `"session_id":"p","session_final":true`, "0,1")
	if s := call(t, h, "GET", "/v1.6/sessions", "", nil).Body.String(); !strings.Contains(s, `"name_of":"group"`) || !strings.Contains(s, `"total":2`) {
		t.Errorf("before the parent's end: %s", s)
	}
	free("last")
	if s := call(t, h, "GET", "/v1.6/sessions", "", nil).Body.String(); !strings.Contains(s, `"total":0`) {
		t.Errorf("after the parent's end: %s", s)
	}
	book("other", `"session_id":"c","parent_session_id":"p"`, "1") // would be refused if the group were bound to worker 0
}
