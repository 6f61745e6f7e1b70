package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/test/helpers/agents"
)

// TestSelectionIDs: which id is the reservation's, and what a pending selection is, by
// dialect (decision E1).
func TestSelectionIDs(t *testing.T) {
	f := &fake{}
	const differ = "`selection_id` and `reservation_id` differ"
	for _, tc := range []struct {
		d                      dialect
		path, body             string
		selection, reservation string // "-" for none
		keep                   bool
		refused                string
	}{
		{dialect13, "/select", `{}`, "-", "-", false, ""},
		{dialect13, "/select", `{"selection_id":"s","reservation_id":7}`, "s", "-", false, ""},
		{dialect13, "/select_and_reserve", `{"selection_id":"s","reservation_id":"r"}`, "s", "r", false, ""},
		{dialect13, "/select_and_reserve", `{"selection_id":"s"}`, "s", "-", false, ""},
		{dialect13, "/select_and_reserve", `{"reservation_id":"r"}`, "-", "r", false, ""},

		{dialect16, "/select", `{}`, "-", "-", false, ""},
		{dialect16, "/select", `{"selection_id":"s"}`, "s", "-", true, ""},
		{dialect16, "/select", `{"selection_id":""}`, "", "-", true, ""},
		{dialect16, "/select", `{"reservation_id":"s"}`, "s", "-", true, ""},
		{dialect16, "/select", `{"selection_id":null,"reservation_id":null}`, "-", "-", false, ""},
		{dialect16, "/select", `{"reservation_id":"r","selection_id":"s"}`, "", "", false, "selection_id: " + differ},
		{dialect16, "/select_and_reserve", `{}`, "-", "-", false, ""},
		{dialect16, "/select_and_reserve", `{"selection_id":"s"}`, "s", "s", false, ""},
		{dialect16, "/select_and_reserve", `{"selection_id":"s","reservation_id":"s"}`, "s", "s", false, ""},
		{dialect16, "/select_and_reserve", `{"selection_id":null,"reservation_id":"s"}`, "s", "s", false, ""},
		{dialect16, "/select_and_reserve", `{"selection_id":"s","reservation_id":null}`, "s", "s", false, ""},
		{dialect16, "/select_and_reserve", `{"selection_id":"s","reservation_id":"r"}`, "", "", false, "reservation_id: " + differ},
		{dialect16, "/select_and_reserve", `{"reservation_id":7}`, "", "", false, "reservation_id: invalid type: number"},
		{dialect16, "/select_and_reserve", `{"selection_id":"s","selection_id":"s"}`, "", "", false, "duplicate field `selection_id`"},
	} {
		for _, s := range speakers(f) {
			if s.d != tc.d {
				continue
			}
			w := call(t, s, "POST", s.prefix+tc.path, tc.body, nil)
			if tc.refused != "" {
				if w.Code != 422 || !strings.HasPrefix(errorText(t, w), shapePrefix+tc.refused) {
					t.Errorf("%s %s: %d %s, want %s", s.name, tc.body, w.Code, w.Body, tc.refused)
				}
				continue
			}
			show := func(id *string) string {
				if id == nil {
					return "-"
				}
				return *id
			}
			got := f.selected
			if w.Code != 200 || show(got.SelectionID) != tc.selection || show(got.ReservationID) != tc.reservation || got.Pending != tc.keep {
				t.Errorf("%s %s %s: %d, ids %s %s, keep %t", s.name, tc.path, tc.body, w.Code, show(got.SelectionID), show(got.ReservationID), got.Pending)
			}
			if got.Dialect != contract.Version(s.d) {
				t.Errorf("%s %s: dialect %v", s.name, tc.path, got.Dialect)
			}
		}
	}
}

// TestReserveBodies: what a reservation has to name by dialect, and when it books
// a kept selection.
func TestReserveBodies(t *testing.T) {
	f := &fake{}
	type want struct {
		id     string
		worker uint64
		kept   bool
		track  *bool
	}
	for _, tc := range []struct {
		d       dialect
		body    string
		want    want
		refused string
	}{
		{dialect13, `{"reservation_id":"r","worker_id":7,"selection_id":5,"track_prefill_tokens":5}`, want{"r", 7, false, nil}, ""},
		{dialect13, `{"worker_id":7}`, want{}, "missing field `reservation_id`"},
		{dialect13, `{"selection_id":"s","worker_id":7}`, want{}, "missing field `reservation_id`"},
		{dialect13, `{"reservation_id":"r"}`, want{}, "missing field `worker_id`"},
		{dialect13, `{"reservation_id":"r","worker_id":null}`, want{}, "worker_id: invalid type: null"},

		{dialect16, `{"selection_id":"s","worker_id":7}`, want{"s", 7, false, nil}, ""},
		{dialect16, `{"reservation_id":"s","worker_id":0}`, want{"s", 0, false, nil}, ""},
		{dialect16, `{"reservation_id":"s","selection_id":"s","worker_id":7,"track_prefill_tokens":false}`, want{"s", 7, false, ptr(false)}, ""},
		{dialect16, `{"selection_id":"s"}`, want{"s", 0, true, nil}, ""},
		{dialect16, `{"reservation_id":"s","worker_id":null,"track_prefill_tokens":null}`, want{"s", 0, true, nil}, ""},
		{dialect16, `{"selection_id":"s","token_ids":[1],"dp_rank":3}`, want{"s", 0, true, nil}, ""},
		{dialect16, `{}`, want{}, "missing field `selection_id` at line 1 column 3"},
		{dialect16, `{"worker_id":7}`, want{}, "missing field `selection_id`"},
		{dialect16, `{"selection_id":null}`, want{}, "selection_id: invalid type: null"},
		{dialect16, `{"selection_id":"s","reservation_id":null}`, want{}, "reservation_id: invalid type: null"},
		{dialect16, `{"selection_id":"s","reservation_id":"r"}`, want{}, "reservation_id: `selection_id` and `reservation_id` differ"},
		{dialect16, `{"selection_id":"s","worker_id":"7"}`, want{}, "worker_id: invalid type: string"},
		{dialect16, `{"selection_id":"s","track_prefill_tokens":1}`, want{}, "track_prefill_tokens: invalid type: number"},
	} {
		for _, s := range speakers(f) {
			if s.d != tc.d {
				continue
			}
			f.booked, f.pending = selection.ReserveRequest{}, selection.PendingRequest{}
			w := call(t, s, "POST", s.prefix+"/reservations", tc.body, nil)
			switch {
			case tc.refused == "" && w.Code == 201:
				b, p := f.booked, f.pending
				equal(t, s.name+" "+tc.body, want{b.ID + p.ID, b.Rank.Worker, p.ID != "", b.TrackPrefill}, tc.want, exportAll)
			case tc.refused == "" || w.Code != 422 || !strings.HasPrefix(errorText(t, w), shapePrefix+tc.refused):
				t.Errorf("%s %s: %d %s, want %s", s.name, tc.body, w.Code, w.Body, tc.refused)
			}
		}
	}
}

// TestSafeRetries: lease and if_exists mean the same in both dialects, on the
// routes that book.
func TestSafeRetries(t *testing.T) {
	f := &fake{}
	for _, tc := range []struct {
		members string
		lease   time.Duration
		exists  selection.IfExists
		status  int
		text    string
	}{
		{`"x":1`, 0, selection.Refuse, 0, ""},
		{`"lease_seconds":null,"if_exists":null`, 0, selection.Refuse, 0, ""},
		{`"lease_seconds":0.1,"if_exists":"return"`, 100 * time.Millisecond, selection.ReturnFirst, 0, ""},
		{`"lease_seconds":30,"if_exists":"error"`, 30 * time.Second, selection.Refuse, 0, ""},
		{`"lease_seconds":86400`, 24 * time.Hour, selection.Refuse, 0, ""},
		{`"lease_seconds":1.0000000001`, time.Second, selection.Refuse, 0, ""},
		{`"lease_seconds":0`, 0, 0, 400, errLease.text},
		{`"lease_seconds":0.0999`, 0, 0, 400, errLease.text},
		{`"lease_seconds":-30`, 0, 0, 400, errLease.text},
		{`"lease_seconds":86400.1`, 0, 0, 400, errLease.text},
		{`"lease_seconds":1e300`, 0, 0, 400, errLease.text},
		{`"lease_seconds":"30"`, 0, 0, 422, shapePrefix + "lease_seconds: invalid type: string"},
		{`"if_exists":"Return"`, 0, 0, 422, shapePrefix + "if_exists: unknown variant, expected `return` or `error`"},
		{`"if_exists":true`, 0, 0, 422, shapePrefix + "if_exists: invalid type: boolean"},
		{`"if_exists":"return","if_exists":"return"`, 0, 0, 422, shapePrefix + "duplicate field `if_exists`"},
	} {
		for _, s := range speakers(f) {
			for _, path := range []string{"/select_and_reserve", "/reservations"} {
				w := call(t, s, "POST", s.prefix+path, `{"reservation_id":"r","worker_id":1,`+tc.members+`}`, nil)
				if tc.status != 0 {
					if w.Code != tc.status || !strings.HasPrefix(errorText(t, w), tc.text) {
						t.Errorf("%s %s %s: %d %s", s.name, path, tc.members, w.Code, w.Body)
					}
					continue
				}
				lease, exists := f.selected.Lease, f.selected.IfExists
				if path == "/reservations" {
					lease, exists = f.booked.Lease, f.booked.IfExists
				}
				if w.Code >= 300 || lease != tc.lease || exists != tc.exists {
					t.Errorf("%s %s %s: %d %s, lease %v, if_exists %d", s.name, path, tc.members, w.Code, w.Body, lease, exists)
				}
			}
			// On /select there is nothing to be booked.
			if w := call(t, s, "POST", s.prefix+"/select", `{`+strings.Replace(tc.members, `,"if_exists":"return"`, "", 1)+`}`, nil); w.Code != 200 || f.selected.Lease != 0 {
				t.Errorf("%s /select %s: %d %s, lease %v", s.name, tc.members, w.Code, w.Body, f.selected.Lease)
			}
		}
	}
}

// TestRepeatNeedsID: if_exists means nothing without the reservation's id under the name
// that the dialect has for it.
func TestRepeatNeedsID(t *testing.T) {
	f := &fake{}
	for _, s := range speakers(f) {
		name, bodies := "reservation_id", []string{`{"if_exists":"return"}`, `{"if_exists":"return","reservation_id":null}`}
		if s.d == dialect16 {
			name = "selection_id"
		} else {
			bodies = append(bodies, `{"if_exists":"return","selection_id":"x"}`)
		}
		for _, body := range bodies {
			w := call(t, s, "POST", s.prefix+"/select_and_reserve", body, nil)
			if want := "if_exists needs `" + name + "`"; w.Code != 400 || errorText(t, w) != want {
				t.Errorf("%s %s: %d %s, want %s", s.name, body, w.Code, w.Body, want)
			}
		}
		for _, body := range []string{`{"if_exists":"error"}`, `{"if_exists":"return","` + name + `":""}`} {
			if w := call(t, s, "POST", s.prefix+"/select_and_reserve", body, nil); w.Code != 200 {
				t.Errorf("%s %s: %d %s", s.name, body, w.Code, w.Body)
			}
		}
	}
}

// TestSessions: what a body says about its session, and that only the 1.6 dialect
// reads it.
func TestSessions(t *testing.T) {
	f := &fake{}
	context := func(members string) string { return `{"session_context":{` + members + `}}` }
	for _, tc := range []struct {
		body     string
		session  string
		advisory bool
		refused  string
	}{
		{`{}`, "", false, ""},
		{`{"session_id":"s","advisory":true}`, "s", true, ""},
		{`{"session_id":null,"session_context":null,"advisory":false}`, "", false, ""},
		{`{"session_context":{"session_id":"c"},"session_id":"s"}`, "c", false, ""},
		{`{"session_id":"s","session_context":{"session_id":"c"}}`, "c", false, ""},
		{`{"session_id":"s","session_context":{"session_id":""}}`, "", false, ""},
		{context(`"session_id":"c","parent_session_id":"p","session_final":true,"input_trigger":"user_message","agent_headers":{"a":["b","c"],"d":[]},"x":{}`), "c", false, ""},
		{context(`"session_id":"c","parent_session_id":null,"session_final":null,"input_trigger":null,"agent_headers":null`), "c", false, ""},
		{context(`"session_id":"c","input_trigger":"tool_result"`), "c", false, ""},
		{context(`"session_id":"c","input_trigger":"other"`), "c", false, ""},
		{`{"kv_hint":[],"track_prefill_tokens":"x"}`, "", false, ""}, // not read
		{`{"affinity_target":null}`, "", false, ""},
		{`{"affinity_target":{"worker_id":1},"session_id":"s"}`, "s", false, ""},
		{`{"affinity_target":{"worker_id":1,"dp_rank":null,"x":[]}}`, "", false, ""},

		{`{"affinity_target":5}`, "", false, "affinity_target: invalid type: number"},
		{`{"affinity_target":{}}`, "", false, "affinity_target: missing field `worker_id`"},
		{`{"affinity_target":{"worker_id":"a"}}`, "", false, "affinity_target.worker_id: invalid type"},
		{`{"affinity_target":{"worker_id":1,"dp_rank":-1}}`, "", false, "affinity_target.dp_rank: "},

		{`{"advisory":null}`, "", false, "advisory: invalid type: null"},
		{`{"advisory":1}`, "", false, "advisory: invalid type: number"},
		{`{"session_id":5}`, "", false, "session_id: invalid type: number"},
		{`{"session_context":"c"}`, "", false, "session_context: invalid type: string"},
		{context(``), "", false, "session_context: missing field `session_id`"},
		{context(`"session_id":null`), "", false, "session_context.session_id: invalid type: null"},
		{context(`"session_id":"c","parent_session_id":7`), "", false, "session_context.parent_session_id: invalid type"},
		{context(`"session_id":"c","session_final":"x"`), "", false, "session_context.session_final: invalid type"},
		{context(`"session_id":"c","input_trigger":"bad"`), "", false, "session_context.input_trigger: unknown variant"},
		{context(`"session_id":"c","agent_headers":{"a":"b"}`), "", false, "session_context.agent_headers.a: invalid type"},
		{context(`"session_id":"c","agent_headers":{"a":null}`), "", false, "session_context.agent_headers.a: invalid type"},
		{context(`"session_id":"c","agent_headers":{"a":[1]}`), "", false, "session_context.agent_headers.a[0]: invalid type"},
	} {
		for _, s := range speakers(f) {
			for _, path := range []string{"/select", "/select_and_reserve"} {
				name := s.name + " " + path + " " + tc.body
				w := call(t, s, "POST", s.prefix+path, tc.body, nil)
				session, advisory, refused := tc.session, tc.advisory && path == "/select", tc.refused
				if s.d == dialect13 {
					session, advisory, refused = "", false, ""
				}
				if path != "/select" && strings.HasPrefix(refused, "advisory") { // unknown there
					refused = ""
				}
				switch {
				case refused != "":
					if w.Code != 422 || !strings.HasPrefix(errorText(t, w), shapePrefix+refused) {
						t.Errorf("%s: %d %s", name, w.Code, w.Body)
					}
				case w.Code != 200 || f.selected.Session != session || f.selected.Advisory != advisory:
					t.Errorf("%s: %d %s, session %q, advisory %t", name, w.Code, w.Body, f.selected.Session, f.selected.Advisory)
				}
			}
		}
	}
}

// TestParents: what a body says of the session that has started its own, and whether it is the last of its own; agents'
// headers say it only where the body's own members do not. What they say of names is package identity's: see its tests.
func TestParents(t *testing.T) {
	long := strings.Repeat("p", 257)
	for name, tc := range map[string]struct {
		members, session, parent string
		final                    bool
		ignored                  identity.Faults
	}{
		"none":                     {`"session_id":"c"`, "c", "", false, 0},
		"said":                     {`"session_id":"c","parent_session_id":"p"`, "c", "p", false, 0},
		"before the session":       {`"parent_session_id":"p","session_id":"c"`, "c", "p", false, 0},
		"empty":                    {`"session_id":"c","parent_session_id":""`, "c", "", false, 0},
		"itself":                   {`"session_id":"c","parent_session_id":"c"`, "c", "", false, 0},
		"of no session":            {`"session_id":"","parent_session_id":"p","session_final":true`, "", "", false, 0},
		"too long":                 {`"session_id":"c","parent_session_id":"` + long + `"`, "c", "", false, identity.TooLong},
		"far too long":             {`"session_id":"c","parent_session_id":"` + strings.Repeat("p", 1<<20) + `"`, "c", "", false, identity.TooLong},
		"a header, far too long":   {`"session_id":"c","agent_headers":{"x-session-id":["c"],"x-parent-session-id":["` + strings.Repeat("p", 256) + " " + strings.Repeat("p", 1<<20) + `"]}`, "c", "", false, identity.TooLong},
		"as long as may be":        {`"session_id":"c","parent_session_id":"` + long[1:] + `"`, "c", long[1:], false, 0},
		"with a control character": {`"session_id":"c","parent_session_id":"p\n"`, "c", "", false, identity.Control},
		"for the service":          {`"session_id":"c","parent_session_id":"\u0001sg:p"`, "c", "\x01sg:p", false, 0}, // it refuses it
		"last":                     {`"session_id":"c","session_final":true`, "c", "", true, 0},
		"not last":                 {`"session_id":"c","session_final":false`, "c", "", false, 0},

		"of headers":              {`"session_id":"c","agent_headers":{"X-Claude-Code-Agent-Id":["c"],"X-Claude-Code-Session-Id":["s"]}`, "c", "s", false, 0},
		"headers before":          {`"agent_headers":{"x-session-id":["c"],"x-parent-session-id":["p"]},"session_id":"c"`, "c", "p", false, 0},
		"headers beside its own":  {`"session_id":"c","parent_session_id":"p","agent_headers":{"x-session-id":["c"],"x-parent-session-id":["q"]}`, "c", "p", false, 0},
		"headers beside null":     {`"session_id":"c","parent_session_id":null,"agent_headers":{"x-session-id":["c"],"x-parent-session-id":["q"]}`, "c", "q", false, 0},
		"of another session":      {`"session_id":"c","agent_headers":{"x-session-id":["d"],"x-parent-session-id":["p"]}`, "c", "p", false, 0},
		"of itself":               {`"session_id":"c","agent_headers":{"x-session-id":["d"],"x-parent-session-id":["c"]}`, "c", "", false, 0},
		"headers never name it":   {`"session_id":"","agent_headers":{"x-session-id":["d"],"x-parent-session-id":["p"]}`, "", "", false, 0},
		"the first that is there": {`"session_id":"c","agent_headers":{"x-session-id":["c"],"x-parent-session-id":[""," p ","q"]}`, "c", "p", false, 0},
		"headers of no values":    {`"session_id":"c","agent_headers":{"x-session-id":[],"x-parent-session-id":["p"]}`, "c", "", false, 0},
		"a parent's header alone": {`"session_id":"c","agent_headers":{"x-parent-session-id":["p"]}`, "c", "", false, 0},
		"a reserved header":       {`"session_id":"c","agent_headers":{"x-session-id":["c"],"x-parent-session-id":["\u0002p"]}`, "c", "", false, identity.Reserved},
		"headers say it is last":  {`"session_id":"c","agent_headers":{"x-dynamo-session-final":["true"]}`, "c", "", true, 0},
		"the body says it is not": {`"session_id":"c","session_final":false,"agent_headers":{"x-dynamo-session-final":["true"]}`, "c", "", false, 0},
	} {
		f := &fake{}
		for _, s := range speakers(f) {
			for _, path := range []string{"/select", "/select_and_reserve", "/explain"} {
				body, session, parent, final, ignored := `{"session_context":{`+tc.members+`}}`, tc.session, tc.parent, tc.final, tc.ignored
				if s.d == dialect13 {
					session, parent, final, ignored = "", "", false, 0
				}
				f.ignored = 0
				w := call(t, s, "POST", s.prefix+path, body, nil)
				if path == "/explain" { // it is no request
					ignored = 0
				}
				if w.Code != 200 || f.selected.Session != session || f.selected.Parent != parent || f.selected.Final != final || f.ignored != ignored {
					t.Errorf("%s: %s %s: %d %s, session %q of %q, last %t, ignored %b", name, s.name, path, w.Code, w.Body, f.selected.Session, f.selected.Parent, f.selected.Final, f.ignored)
				}
			}
		}
	}
}

// TestAgentHeaders plays the headers of real agents as a router passes them on, beside the name that the router has for the session.
func TestAgentHeaders(t *testing.T) {
	f := &fake{}
	h := New(f, nil, Options{})
	for _, r := range agents.Requests(t) {
		headers := map[string][]string{}
		for _, field := range r.Headers {
			headers[field[0]] = append(headers[field[0]], field[1])
		}
		text, err := json.Marshal(headers)
		if err != nil {
			t.Fatal(err)
		}
		for _, session := range []string{r.Session, "the router's"} {
			name, err := json.Marshal(session)
			if err != nil {
				t.Fatal(err)
			}
			w := call(t, h, "POST", "/v1.6/select_and_reserve", `{"session_context":{"session_id":`+string(name)+`,"agent_headers":`+string(text)+`}}`, nil)
			if got := f.selected; w.Code != 200 || got.Session != session || got.Parent != r.Parent || got.Final != (r.Final && session != "") {
				t.Errorf("%s: %d %s, session %q of %q, last %t", r.Name, w.Code, w.Body, got.Session, got.Parent, got.Final)
			}
		}
	}
}

// TestOverrideRange: the 1.6 dialect lets a hit count more than a block.
func TestOverrideRange(t *testing.T) {
	f := &fake{}
	for _, s := range speakers(f) {
		for credit, status := range map[string][2]int{"-0.1": {422, 422}, "0": {200, 200}, "1": {200, 200}, "1.5": {422, 200}, "1e300": {422, 200}} {
			for _, path := range []string{"/select", "/reservations", "/potential_loads"} {
				body := `{"reservation_id":"r","worker_id":1,"router_config_override":{"overlap_score_credit":` + credit + `}}`
				w := call(t, s, "POST", s.prefix+path, body, nil)
				if want := status[s.d]; w.Code != want && (want != 200 || w.Code != 201) {
					t.Errorf("%s %s with %s: %d %s", s.name, path, credit, w.Code, w.Body)
				}
			}
		}
	}
}
