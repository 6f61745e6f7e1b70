package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/contract"
)

// TestConductorBodies: every member arrives where it belongs, on both listeners
// and whatever the content type, null means absence where a member is optional,
// and a body leaves nothing behind for the next one.
func TestConductorBodies(t *testing.T) {
	f := &fake{}
	for prefix, h := range conductorHandlers(f) {
		post := func(path, body string) {
			t.Helper()
			if w := call(t, h, "POST", prefix+path, body, http.Header{}); w.Code != 200 {
				t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
			}
		}
		post("/register", `{"endpoint":"tcp://a:1","replay_endpoint":"tcp://a:2","kv_events_server_key":null,"type":"Mooncake","modelname":"m","lora_name":"l","tenant_id":"t",
			"instance_id":"i","block_size":2147483647,"dp_rank":4294967295,"additionalsalt":"s","hash_seed":18446744073709551615,"hash_profile":{}}`)
		equal(t, "register", f.registered, conductor.Registration{
			Type: conductor.Mooncake, Identity: conductor.Identity{Tenant: "t", Model: "m", LoRA: "l", Salt: "s", BlockSize: 1<<31 - 1},
			Instance: "i", Rank: maxU32, Endpoint: "tcp://a:1", Replay: "tcp://a:2", HashSeed: maxU64,
		})
		bare := conductor.Registration{
			Type: conductor.SGLang, Identity: conductor.Identity{Tenant: "default", Model: "m", BlockSize: 1}, Instance: "i", Endpoint: "e", HashSeed: 1337,
		}
		for _, rest := range []string{
			``, `,"tenant_id":""`,
			`,"replay_endpoint":null,"lora_name":null,"tenant_id":null,"additionalsalt":null,"hash_seed":null`,
		} {
			post("/register", `{"dp_rank":0,"block_size":1,"instance_id":"i","modelname":"m","type":"sglang","endpoint":"e"`+rest+"}")
			equal(t, "register"+rest, f.registered, bare)
		}

		post("/unregister", `{"instance_id":"i","tenant_id":"t","type":"vLLM","modelname":"m","lora_name":"","additionalsalt":"s","endpoint":"e","replay_endpoint":"r","block_size":4,"dp_rank":0,"hash_seed":18446744073709551615}`)
		equal(t, "unregister", f.unregistered, conductor.Filter{
			Instance: "i", Tenant: "t", Type: ptr(conductor.VLLM), Model: ptr("m"), LoRA: ptr(""), Salt: ptr("s"), Endpoint: ptr("e"), Replay: ptr("r"),
			BlockSize: ptr[uint32](4), Rank: ptr[uint32](0), HashSeed: ptr[uint64](1<<64 - 1),
		})
		for _, rest := range []string{
			``, `,"tenant_id":""`,
			`,"tenant_id":null,"type":null,"modelname":null,"lora_name":null,"additionalsalt":null,"endpoint":null,"replay_endpoint":null,"block_size":null,"dp_rank":null,"hash_seed":null`,
		} {
			post("/unregister", `{"instance_id":"i"`+rest+"}")
			equal(t, "unregister"+rest, f.unregistered, conductor.Filter{Instance: "i", Tenant: "default"})
		}

		const tokens, hashes = `"token_ids":[1,4294967295]`, `"seq_hashes":[-1,9223372036854775808]`
		full := conductor.Query{
			Identity: conductor.Identity{Tenant: "t", Model: "m", LoRA: "l", Salt: "s", BlockSize: 64}, Instance: "i", Tokens: []uint32{1, maxU32},
		}
		byHash := full
		byHash.Tokens, byHash.Hashes, byHash.ByHash = nil, []uint64{maxU64, 1 << 63}, true
		bareQuery := conductor.Query{Identity: conductor.Identity{Tenant: "default", Model: "m", BlockSize: 64}}
		for _, tc := range []struct {
			paths []string
			list  string
			full  conductor.Query
		}{
			{[]string{"/query", "/diagnose"}, tokens, full},
			{[]string{"/query_by_hash", "/diagnose"}, hashes, byHash},
			{[]string{"/query_by_hash", "/diagnose"}, strings.Replace(hashes, "seq_hashes", "block_hash", 1), byHash},
			{[]string{"/query_by_hash", "/diagnose"}, `"block_hash":null,` + hashes, byHash},
		} {
			for _, path := range tc.paths {
				post(path, `{"model":"m","lora_name":"l","lora_id":null,`+tc.list+`,"tenant_id":"t","instance_id":"i","block_size":64,"cache_salt":"s","x":[{}]}`)
				equal(t, path, f.asked, tc.full)
				want := bareQuery
				want.Tokens, want.Hashes, want.ByHash = tc.full.Tokens, tc.full.Hashes, tc.full.ByHash
				for _, rest := range []string{
					``, `,"tenant_id":"","instance_id":"","lora_name":"","cache_salt":""`,
					`,"lora_name":null,"lora_id":null,"tenant_id":null,"instance_id":null,"cache_salt":null`,
					`,"lora_id":0`, `,"lora_id":-1`,
				} {
					post(path, `{"block_size":64,"model":"m",`+tc.list+rest+"}")
					equal(t, path+rest, f.asked, want)
				}
				want.LoRA = "9223372036854775807"
				for _, name := range []string{``, `,"lora_name":null`, `,"lora_name":""`} {
					post(path, `{"block_size":64,"lora_id":9223372036854775807,"model":"m",`+tc.list+name+"}")
					equal(t, path+" with a number for the LoRA", f.asked, want)
				}
			}
		}
		post("/query", `{"model":"m","block_size":64,"token_ids":[],"seq_hashes":"ignored"}`)
		equal(t, "no tokens", f.asked, bareQuery)
		post("/diagnose", `{"model":"m","block_size":64,"token_ids":[],"max_blocks":null,"seq_hashes":null}`)
		equal(t, "no tokens", f.asked, bareQuery)
		if f.maxBlocks != 256 {
			t.Errorf("max_blocks = %d without one", f.maxBlocks)
		}
		if post("/diagnose", `{"model":"m","block_size":64,"token_ids":[],"max_blocks":4096}`); f.maxBlocks != 4096 {
			t.Errorf("max_blocks = %d, want 4096", f.maxBlocks)
		}
	}
}

// conductorProblem is an error answer of the Conductor contract.
type conductorProblem struct {
	Error  string `json:"error"`
	Reason string `json:"reason"`
	Field  string `json:"field,omitempty"`
}

// problemIn reads an error answer, which must have exactly the form of the
// Conductor contract.
func problemIn(t testing.TB, w *httptest.ResponseRecorder) (p conductorProblem) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil || p.Error == "" || p.Reason == "" {
		t.Fatalf("answer %q is no error of the contract: %v", w.Body, err)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type = %q", got)
	}
	return p
}

// TestConductorFaults: every fault of a request is told by status, reason and
// field on both listeners, and none of them reaches the service.
func TestConductorFaults(t *testing.T) {
	const (
		register = `{"endpoint":"tcp://a:1","type":"vLLM","modelname":"m","instance_id":"i","block_size":4,"dp_rank":0}`
		query    = `{"model":"m","block_size":4,"token_ids":[1]}`
		byHash   = `{"model":"m","block_size":4,"seq_hashes":[1]}`
	)
	type fault struct {
		method, path, body string
		status             int
		reason, field      string
	}
	tests := []fault{
		{"GET", "/nope", "", 404, "route_not_found", ""},
		{"POST", "/query/", query, 404, "route_not_found", ""},
		{"GET", "/query", "", 405, "method_not_allowed", ""},
		{"PUT", "/register", register, 405, "method_not_allowed", ""},
		{"POST", "/services", "", 405, "method_not_allowed", ""},
		{"DELETE", "/health", "", 405, "method_not_allowed", ""},
	}
	whole := []fault{ // faults of a body as a whole
		{body: ``, status: 400, reason: "invalid_json"},
		{body: "\n", status: 400, reason: "invalid_json"},
		{body: `{`, status: 400, reason: "invalid_json"},
		{body: `{"x":`, status: 400, reason: "invalid_json"},
		{body: `nonsense`, status: 400, reason: "invalid_json"},
		{body: `[]`, status: 400, reason: "invalid_json"},
		{body: `null`, status: 400, reason: "invalid_json"},
		{body: `"x"`, status: 400, reason: "invalid_json"},
		{body: "{\"\xff\":1}", status: 400, reason: "invalid_json"},
		{body: `{"x":` + strings.Repeat("[", 1<<16), status: 400, reason: "invalid_json"},
		{body: `{"x":` + strings.Repeat(`{"x":`, 1<<16), status: 400, reason: "invalid_json"},
		{body: strings.Repeat(" ", maxBody) + "{}", status: 413, reason: "body_too_large"},
	}
	for path, good := range map[string]string{
		"/register": register, "/unregister": `{"instance_id":"i"}`, "/query": query, "/query_by_hash": byHash, "/diagnose": query,
	} {
		for _, tc := range append(whole, fault{body: good + "x", status: 400, reason: "invalid_json"}, fault{body: good + good, status: 400, reason: "invalid_json"}) {
			tests = append(tests, fault{"POST", path, tc.body, tc.status, tc.reason, tc.field})
		}
	}

	// Each member of a good body left out, and with each of the values.
	wrong := func(path, good, field string, required bool, values ...string) {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(good), &members); err != nil {
			t.Fatal(err)
		}
		with := func(value string) string {
			delete(members, field)
			if value != "" {
				members[field] = json.RawMessage(value)
			}
			text, err := json.Marshal(members)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if required {
			tests = append(tests, fault{"POST", path, with(""), 400, "missing_field", field}, fault{"POST", path, with("null"), 400, "invalid_field", field})
		}
		for _, value := range values {
			tests = append(tests, fault{"POST", path, with(value), 400, "invalid_field", field})
		}
		twice := strings.TrimSuffix(with("null"), "}") + `,"` + field + `":null}`
		if !required {
			tests = append(tests, fault{"POST", path, twice, 400, "invalid_field", field})
		}
	}
	noText := []string{`7`, `[]`, `{}`, `true`}
	noName := append(noText, `""`)
	noU32 := []string{`"1"`, `-1`, `4294967296`, `1.0`, `1e1`, `[]`, `false`}
	noSize := append(noU32, `0`, `2147483648`)
	noHashes := []string{`"x"`, `{}`, `1`, `[1.5]`, `["1"]`, `[null]`, `[18446744073709551616]`, `[-9223372036854775809]`, `[[1]]`}
	noTokens := []string{`"x"`, `{}`, `1`, `[1.5]`, `["1"]`, `[null]`, `[4294967296]`, `[-1]`, `[[1]]`}

	wrong("/register", register, "endpoint", true, noText...)
	wrong("/register", register, "type", true, noText...)
	wrong("/register", register, "modelname", true, noName...)
	wrong("/register", register, "instance_id", true, noName...)
	wrong("/register", register, "block_size", true, noSize...)
	wrong("/register", register, "dp_rank", true, noU32...)
	wrong("/register", register, "replay_endpoint", false, noText...)
	wrong("/register", register, "lora_name", false, noText...)
	wrong("/register", register, "tenant_id", false, noText...)
	wrong("/register", register, "additionalsalt", false, noText...)
	wrong("/register", register, "hash_seed", false, `"1"`, `-1`, `18446744073709551616`, `1.0`)
	wrong("/unregister", `{"instance_id":"i"}`, "instance_id", true, noName...)
	for _, field := range []string{"tenant_id", "type", "modelname", "lora_name", "additionalsalt", "endpoint", "replay_endpoint"} {
		wrong("/unregister", `{"instance_id":"i"}`, field, false, noText...)
	}
	wrong("/unregister", `{"instance_id":"i"}`, "block_size", false, noSize...)
	wrong("/unregister", `{"instance_id":"i"}`, "dp_rank", false, noU32...)
	wrong("/unregister", `{"instance_id":"i"}`, "hash_seed", false, `"1"`, `-1`, `18446744073709551616`, `1.0`)
	for path, good := range map[string]string{"/query": query, "/query_by_hash": byHash, "/diagnose": query} {
		wrong(path, good, "model", true, noName...)
		wrong(path, good, "block_size", true, noSize...)
		wrong(path, good, "lora_id", false, `"1"`, `18446744073709551616`, `1.0`)
		for _, field := range []string{"lora_name", "tenant_id", "instance_id", "cache_salt"} {
			wrong(path, good, field, false, noText...)
		}
		tests = append(tests,
			fault{"POST", path, strings.Replace(good, "{", `{"lora_id":0,"lora_name":"l",`, 1), 400, "exclusive_fields", "lora_id"})
	}
	wrong("/query", query, "token_ids", true, noTokens...)
	wrong("/query_by_hash", byHash, "seq_hashes", false, noHashes...)
	wrong("/query_by_hash", `{"model":"m","block_size":4}`, "block_hash", false, noHashes...)
	wrong("/diagnose", `{"model":"m","block_size":4}`, "token_ids", false, noTokens...)
	wrong("/diagnose", `{"model":"m","block_size":4}`, "seq_hashes", false, noHashes...)
	wrong("/diagnose", query, "max_blocks", false, `0`, `4097`, `-1`, `"1"`, `1.0`)
	for _, lists := range []string{``, `,"seq_hashes":null`, `,"block_hash":null`, `,"token_ids":[1]`} {
		tests = append(tests, fault{"POST", "/query_by_hash", `{"model":"m","block_size":4` + lists + "}", 400, "missing_field", "seq_hashes"})
	}
	tests = append(tests,
		fault{"POST", "/register", strings.Replace(register, "vLLM", "TensorRT", 1), 400, "unknown_type", "type"},
		fault{"POST", "/register", strings.Replace(register, "vLLM", "", 1), 400, "unknown_type", "type"},
		fault{"POST", "/unregister", `{"instance_id":"i","type":"x"}`, 400, "unknown_type", "type"},
		fault{"POST", "/query", `{"model":"m","block_size":4,"token_ids":[1,2`, 400, "invalid_json", "token_ids"},
		fault{"POST", "/query_by_hash", `{"model":"m","block_size":4,"seq_hashes":[],"block_hash":[]}`, 400, "exclusive_fields", "block_hash"},
		fault{"POST", "/diagnose", `{"model":"m","block_size":4,"seq_hashes":[],"block_hash":[]}`, 400, "exclusive_fields", "block_hash"},
		fault{"POST", "/diagnose", `{"model":"m","block_size":4,"seq_hashes":[],"token_ids":[]}`, 400, "exclusive_fields", "seq_hashes"},
		fault{"POST", "/diagnose", `{"model":"m","block_size":4,"block_hash":[],"token_ids":[]}`, 400, "exclusive_fields", "block_hash"},
		fault{"POST", "/diagnose", `{"model":"m","block_size":4}`, 400, "missing_field", "token_ids"},
	)
	for prefix, h := range conductorHandlers(&fake{call: func() { t.Error("a faulty request reached the service") }}) {
		for _, tc := range tests {
			w := call(t, h, tc.method, prefix+tc.path, tc.body, http.Header{})
			got := problemIn(t, w)
			if w.Code != tc.status || got.Reason != tc.reason || got.Field != tc.field {
				t.Errorf("%s %s%s %.80s: %d %+v, want %d %s %q", tc.method, prefix, tc.path, tc.body, w.Code, got, tc.status, tc.reason, tc.field)
			}
		}
	}
}

// TestConductorErrors: what the service refuses comes with its reason and field
// on both listeners, nothing internal leaks, and a panic is an answer too.
func TestConductorErrors(t *testing.T) {
	f := &fake{}
	for _, tc := range []struct {
		err    error
		status int
		want   conductorProblem
	}{
		{&contract.Error{Kind: contract.BadRequest, Text: "bad", Reason: "invalid_endpoint", Field: "endpoint"}, 400, conductorProblem{"bad", "invalid_endpoint", "endpoint"}},
		{&contract.Error{Kind: contract.Conflict, Text: "other", Reason: "hash_seed_mismatch", Field: "hash_seed"}, 409, conductorProblem{"other", "hash_seed_mismatch", "hash_seed"}},
		{&contract.Error{Kind: contract.Unavailable, Text: "full", Reason: "too_many"}, 503, conductorProblem{"full", "too_many", ""}},
		{&contract.Error{Kind: contract.BadRequest, Text: "bad"}, 400, conductorProblem{"bad", "invalid_field", ""}},
		{&contract.Error{Kind: contract.NotFound, Text: "none"}, 404, conductorProblem{"none", "not_found", ""}},
		{&contract.Error{Kind: contract.Conflict, Text: "taken"}, 409, conductorProblem{"taken", "already_registered", ""}},
		{&contract.Error{Kind: contract.Unavailable, Text: "closing"}, 503, conductorProblem{"closing", "shutting_down", ""}},
		{&contract.Error{Kind: contract.TooMany, Text: "later"}, 429, conductorProblem{"later", "too_many", ""}},
		{&contract.Error{Kind: contract.Internal, Text: "oops", Err: errors.New("secret")}, 500, conductorProblem{"oops", "internal", ""}},
		{errors.New("secret"), 500, conductorProblem{"internal error", "internal", ""}},
	} {
		f.err = tc.err
		for prefix, h := range conductorHandlers(f) {
			for path, body := range map[string]string{
				"/register":   `{"endpoint":"tcp://a:1","type":"vLLM","modelname":"m","instance_id":"i","block_size":4,"dp_rank":0}`,
				"/unregister": `{"instance_id":"i"}`, "/query": `{"model":"m","block_size":4,"token_ids":[]}`,
				"/query_by_hash": `{"model":"m","block_size":4,"seq_hashes":[]}`, "/diagnose": `{"model":"m","block_size":4,"seq_hashes":[]}`,
			} {
				w := call(t, h, "POST", prefix+path, body, nil)
				if got := problemIn(t, w); w.Code != tc.status || got != tc.want {
					t.Errorf("%s%s with %v: %d %+v, want %d %+v", prefix, path, tc.err, w.Code, got, tc.status, tc.want)
				}
			}
		}
	}
	for prefix, h := range conductorHandlers(&fake{call: func() { panic("boom") }}) {
		w := call(t, h, "GET", prefix+"/services", "", nil)
		if got := problemIn(t, w); w.Code != 500 || got != (conductorProblem{"internal error", "internal", ""}) {
			t.Errorf("%s after a panic: %d %+v", prefix, w.Code, got)
		}
	}
}

// TestConductorListener: the listener has the Conductor's routes and no others,
// and GET routes answer HEAD.
func TestConductorListener(t *testing.T) {
	own := NewConductor((&fake{}).conductor(), Options{Log: zerolog.Nop(), Metrics: http.NotFoundHandler()})
	for _, path := range []string{"/metrics", "/ready", "/dump", "/workers", "/conductor/health", "/slots/health", "/replica_sync/peers"} {
		if w := call(t, own, "GET", path, "", nil); w.Code != 404 {
			t.Errorf("the Conductor's listener has %s: %d", path, w.Code)
		}
	}
	for prefix, h := range conductorHandlers(&fake{}) {
		for _, path := range []string{"/services", "/health"} {
			if w := call(t, h, "HEAD", prefix+path, "", nil); w.Code != 200 {
				t.Errorf("HEAD %s%s: %d", prefix, path, w.Code)
			}
		}
	}
	// Beside the prefix the selection contract's own form of errors stays.
	for _, path := range []string{"/conductor", "/conductors/query", "/nope"} {
		if w := call(t, newHandler(&fake{}), "GET", path, "", nil); w.Code != 404 || errorText(t, w) != errRouteNotFound.text {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
