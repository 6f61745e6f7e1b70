package httpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// wanted is the role that each route takes, as the documents promise it (docs/run/access.md):
// written down here on its own, not taken from the routes. "scoped" says that callers
// of one tenant may use it, with a body that names that tenant as %s; a "-" means that
// there is no body.
var wanted = map[string]struct{ role, scoped string }{
	"GET /health":           {"public", "-"},
	"GET /ready":            {"public", "-"},
	"GET /slots/health":     {"public", "-"},
	"GET /conductor/health": {"public", "-"},

	"GET /workers":                            {"read", "-"},
	"GET /loads":                              {"read", "-"},
	"GET /policies":                           {"read", "-"},
	"GET /fleet":                              {"read", "-"},
	"GET /history":                            {"read", "-"},
	"GET /index/prefixes":                     {"read", "-"},
	"GET /doctor":                             {"read", "-"},
	"GET /replicas":                           {"read", "-"},
	"GET /busy_threshold":                     {"read", ""},
	"GET /decisions":                          {"read", "-"},
	"GET /sessions":                           {"read", "-"},
	"GET /fairness":                           {"read", "-"},
	"POST /explain":                           {"read", `{"tenant_id":%q,"token_ids":[1]}`},
	"POST /tokenize":                          {"read", `{"tenant_id":%q,"request":{"prompt":"a"}}`},
	"POST /overlap_scores":                    {"read", `{"tenant_id":%q,"token_ids":[1]}`},
	"POST /potential_loads":                   {"read", `{"tenant_id":%q,"token_ids":[1]}`},
	"POST /diagnose":                          {"read", `{"tenant_id":%q,"token_ids":[1]}`},
	"GET /replica_sync/peers":                 {"read", ""},
	"GET /slots/workers":                      {"read", "-"},
	"GET /slots/loads":                        {"read", "-"},
	"GET /slots/peers":                        {"read", ""},
	"POST /slots/potential_loads":             {"read", `{"model_name":"m","tenant_id":%q,"sequence_hashes":[]}`},
	"GET /conductor/services":                 {"read", "-"},
	"POST /conductor/query":                   {"read", `{"model":"m","tenant_id":%q,"block_size":1,"token_ids":[1]}`},
	"POST /conductor/query_by_hash":           {"read", `{"model":"m","tenant_id":%q,"block_size":1,"seq_hashes":[1]}`},
	"POST /conductor/diagnose":                {"read", `{"model":"m","tenant_id":%q,"block_size":1,"token_ids":[1]}`},
	"GET /openapi.yaml":                       {"read", "-"},
	"GET /kubernetes":                         {"read", ""},
	"POST /select":                            {"call", `{"tenant_id":%q,"token_ids":[1]}`},
	"POST /select_batch":                      {"call", `{"requests":[]}`}, // TestBatchScopes
	"POST /select_and_reserve":                {"call", `{"tenant_id":%q,"token_ids":[1]}`},
	"POST /select_pair":                       {"call", `{"tenant_id":%q,"token_ids":[1]}`},
	"POST /reservations":                      {"call", `{"tenant_id":%q,"reservation_id":"r","worker_id":1,"token_ids":[1]}`},
	"DELETE /reservations/:id":                {"call", "-"},
	"POST /reservations/:id/renew":            {"call", "-"},
	"POST /slots/add":                         {"call", `{"model_name":"m","tenant_id":%q,"request_id":"r","worker_id":1,"dp_rank":0,"sequence_hashes":[]}`},
	"POST /slots/prefill_complete":            {"call", `{"model_name":"m","tenant_id":%q,"request_id":"r"}`},
	"POST /slots/free":                        {"call", `{"model_name":"m","tenant_id":%q,"request_id":"r"}`},
	"POST /workers":                           {"operate", `{"worker_id":1,"tenant_id":%q}`},
	"PUT /workers":                            {"operate", `{"tenant_id":%q,"workers":[]}`},
	"PATCH /workers/:id":                      {"operate", `{}`},
	"PUT /workers/:id/load":                   {"operate", `{"ranks":{}}`},
	"DELETE /workers/:id":                     {"operate", "-"},
	"POST /workers/:id/drain":                 {"operate", `{}`},
	"DELETE /workers/:id/drain":               {"operate", "-"},
	"PUT /policies":                           {"operate", ""},
	"DELETE /policies":                        {"operate", ""},
	"POST /busy_threshold":                    {"operate", ""},
	"DELETE /busy_threshold":                  {"operate", ""},
	"POST /slots/register":                    {"operate", `{"model_name":"m","tenant_id":%q,"worker_id":1,"block_size":1,"dp_start":0,"dp_size":1}`},
	"POST /slots/unregister":                  {"operate", `{"model_name":"m","tenant_id":%q,"worker_id":1}`},
	"POST /slots/register_peer":               {"operate", ""},
	"POST /slots/deregister_peer":             {"operate", ""},
	"POST /conductor/register":                {"operate", `{"modelname":"m","tenant_id":%q,"type":"vLLM","instance_id":"i","block_size":1,"dp_rank":0,"endpoint":"tcp://h:1"}`},
	"POST /conductor/unregister":              {"operate", `{"tenant_id":%q,"instance_id":"i"}`},
	"GET /debug/vars":                         {"operate", ""},
	"GET /debug/pprof/*profile":               {"operate", ""},
	"GET /dump":                               {"peer", ""},
	"GET /replica_sync/snapshot":              {"peer", ""},
	"GET /replica_sync/status":                {"peer", ""},
	"GET /metrics":                            {"metrics", ""},
	"POST /replica_sync/register_peer":        {"operate", ""},
	"POST /replica_sync/deregister_peer":      {"operate", ""},
	"POST /reservations/:id/output_block":     {"call", `{}`},
	"POST /reservations/:id/prefill_complete": {"call", "-"},
}

// TestDocumentedRoles: the table of docs/run/access.md names each route in the row of its
// role. The row of operate is in words.
func TestDocumentedRoles(t *testing.T) {
	page, err := os.ReadFile("../../../docs/run/access.md")
	if err != nil {
		t.Fatal(err)
	}
	row := func(role string) string {
		_, text, found := strings.Cut(string(page), "\n| "+role+" | ")
		if !found {
			t.Fatalf("no row %s", role)
		}
		text, _, _ = strings.Cut(text, "\n")
		return text
	}
	for route, want := range wanted {
		role := "`" + want.role + "`"
		switch want.role {
		case "operate":
			continue
		case "public":
			role = "none"
		}
		method, path, _ := strings.Cut(route, " ")
		if strings.HasPrefix(path, "/reservations/") {
			path = "/reservations/"
		}
		if text := row(role); !strings.Contains(text, path+"`") || want.role == "read" && !strings.Contains(text, method) {
			t.Errorf("the row %s does not have %s", role, route)
		}
	}
}

// includes are the roles that a token with one has.
var includes = map[string]string{
	"read": "public read", "call": "public read call", "operate": "public read call operate", "peer": "public peer", "metrics": "public metrics",
}

// onListener is a listener with the name under which the table above has its paths.
type onListener struct {
	name   string
	engine engine
	table  func(path string) string
}

// listenersOf makes every listener, with the part of its routes.
func listenersOf(svc *fake, opt Options) []onListener {
	withMetrics := opt
	withMetrics.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	withMetrics.Operators = newOperators()
	withMetrics.Operators.Prompts = svc
	return []onListener{
		{"selection", newEngine(svc, svc.conductor(), withMetrics), func(p string) string { return p }},
		{"slots", newSlotsEngine(svc, opt), func(p string) string {
			if strings.HasPrefix(p, "/replica_sync/") {
				return p
			}
			return "/slots" + p
		}},
		{"conductor", newConductorEngine(svc.conductor(), opt), func(p string) string { return "/conductor" + p }},
		{"debug", newDebugEngine(opt), func(p string) string { return p }},
	}
}

// visit calls f for every route of every listener, with its name in the table.
func visit(t *testing.T, listeners []onListener, f func(l onListener, method, path, inTable string)) {
	t.Helper()
	seen := make(map[string]bool)
	for _, l := range listeners {
		for _, r := range l.engine.Routes() {
			path := r.Path
			for _, d := range dialects {
				if rest, ok := strings.CutPrefix(path, d.prefix()); ok {
					path = rest
				}
			}
			path = strings.NewReplacer(":worker_id", ":id", ":reservation_id", ":id").Replace(path)
			method := r.Method
			if method == http.MethodHead {
				method = http.MethodGet
			}
			name := method + " " + l.table(path)
			seen[name] = true
			f(l, r.Method, strings.NewReplacer(":worker_id", "7", ":reservation_id", "r", "/*profile", "/").Replace(r.Path), name)
		}
	}
	for name := range wanted {
		if !seen[name] {
			t.Errorf("no listener has %s", name)
		}
	}
}

// guardOf is a guard of tokens that are named as the roles that they have, and of
// "own-" tokens, which are for the tenant "own".
func guardOf(t testing.TB) *access.Guard {
	t.Helper()
	var file strings.Builder
	file.WriteString("tokens:\n")
	add := func(token, role, more string) {
		sum := sha256.Sum256([]byte(token))
		fmt.Fprintf(&file, "- {name: %s, sha256: %s, roles: [%s]%s}\n", token, hex.EncodeToString(sum[:]), role, more)
	}
	for role := range includes {
		add(role, role, "")
		if role != "peer" && role != "metrics" {
			add("own-"+role, role, ", tenant: own")
		}
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := access.New(path)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func ask(h http.Handler, method, path, token, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func refused(status int) bool { return status == 401 || status == 403 || status == 429 }

// TestRoutesHaveRoles: every route of every listener was registered with a role, and
// it is the one that is promised.
func TestRoutesHaveRoles(t *testing.T) {
	names := map[string]access.Role{
		"public": access.Public, "read": access.Read, "call": access.Call,
		"operate": access.Operate, "peer": access.Peer, "metrics": access.Metrics,
	}
	listeners := listenersOf(&fake{worker: new(catalog.Worker)}, Options{Log: zerolog.Nop()})
	for _, l := range listeners {
		for _, r := range l.engine.Routes() {
			if l.engine.routes.roles[r.Method+" "+r.Path] == 0 {
				t.Errorf("%s: %s %s has no role", l.name, r.Method, r.Path)
			}
		}
	}
	visit(t, listeners, func(l onListener, method, path, inTable string) {
		want, ok := wanted[inTable]
		if !ok {
			t.Errorf("%s: nothing is promised of %s", l.name, inTable)
		}
		if names[want.role] == 0 {
			t.Errorf("%s: no role %q", inTable, want.role)
		}
	})
}

// TestMatrix: every route of every listener, in both dialects, against no token, a
// wrong one and each role.
func TestMatrix(t *testing.T) {
	for _, version := range []contract.Version{contract.V13, contract.V16} {
		svc := &fake{worker: new(catalog.Worker)}
		visit(t, listenersOf(svc, Options{Log: zerolog.Nop(), Contract: version, Access: guardOf(t)}), func(l onListener, method, path, inTable string) {
			role := wanted[inTable].role
			for token, allowed := range map[string]bool{
				"": role == "public", "wrong": false,
				"read": strings.Contains(includes["read"], role), "call": strings.Contains(includes["call"], role),
				"operate": strings.Contains(includes["operate"], role), "peer": strings.Contains(includes["peer"], role),
				"metrics": strings.Contains(includes["metrics"], role),
			} {
				called := false
				svc.call = func() { called = true }
				w := ask(l.engine, method, path, token, "{}")
				switch want := map[bool]int{true: 401, false: 403}[token == "" || token == "wrong"]; {
				case allowed && refused(w.Code):
					t.Errorf("%s: %s %s with %q: %d", l.name, method, path, token, w.Code)
				case !allowed && w.Code != want && w.Code != 429, !allowed && called:
					t.Errorf("%s: %s %s with %q: %d, the service was asked: %v", l.name, method, path, token, w.Code, called)
				case !allowed && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer "):
					t.Errorf("%s: %s %s with %q: no challenge", l.name, method, path, token)
				}
			}
		})
	}
}

// TestMatrixScopes: a caller of one tenant reaches what names it, or is limited to it,
// and nothing that names another one or that knows no tenants.
func TestMatrixScopes(t *testing.T) {
	svc := &fake{worker: new(catalog.Worker), ready: true}
	visit(t, listenersOf(svc, Options{Log: zerolog.Nop(), Access: guardOf(t)}), func(l onListener, method, path, inTable string) {
		want := wanted[inTable]
		if want.role == "peer" || want.role == "metrics" {
			return
		}
		const token = "own-operate"
		named := strings.Contains(want.scoped, "%")
		for _, tenant := range []string{"own", "foreign", "default"} {
			body := want.scoped
			if named {
				body = fmt.Sprintf(body, tenant)
			}
			called := false
			svc.call, svc.tenant = func() { called = true }, nil
			w := ask(l.engine, method, path, token, body)
			allowed := want.role == "public" || want.scoped != "" && (!named || tenant == "own")
			switch {
			case allowed && w.Code != 200 && w.Code != 201:
				t.Errorf("%s: %s %s for %s: %d %s", l.name, method, path, tenant, w.Code, w.Body)
			case !allowed && (w.Code != 403 || called):
				t.Errorf("%s: %s %s for %s: %d, the service was asked: %v", l.name, method, path, tenant, w.Code, called)
			}
			if list := strings.HasSuffix(inTable, "/workers") || strings.HasSuffix(inTable, "/loads") || strings.HasSuffix(inTable, "/policies") || strings.HasSuffix(inTable, "/decisions") || strings.HasSuffix(inTable, "/sessions") || strings.HasSuffix(inTable, "/fairness"); list && want.scoped == "-" && want.role == "read" {
				if svc.tenant == nil || *svc.tenant != "own" {
					t.Errorf("%s: %s %s is not limited to the tenant", l.name, method, path)
				}
				if w := ask(l.engine, method, path+"?tenant_id="+tenant, token, ""); (w.Code == 403) != (tenant != "own") {
					t.Errorf("%s: %s %s?tenant_id=%s: %d", l.name, method, path, tenant, w.Code)
				}
			}
		}
	})
}

// TestUnrouted: where nothing is found, a caller without a token learns no more than
// that he needs one.
func TestUnrouted(t *testing.T) {
	for _, l := range listenersOf(&fake{}, Options{Log: zerolog.Nop(), Access: guardOf(t)}) {
		for _, path := range []string{"/nothing", "/health", "/v1.3/nothing", "/conductor/nothing", "//health"} {
			for token, want := range map[string]string{"": "401", "wrong": "401", "peer": "404 405"} {
				if w := ask(l.engine, "TRACE", path, token, ""); !strings.Contains(want, fmt.Sprint(w.Code)) || w.Code == 401 && w.Header().Get("Allow") != "" {
					t.Errorf("%s: TRACE %s with %q: %d", l.name, path, token, w.Code)
				}
			}
		}
	}
}

// TestParts: with an admin listener the operators' routes are there, with what reads,
// and are 404 elsewhere.
func TestParts(t *testing.T) {
	for part, served := range map[Part]string{
		AllRoutes: "public read call operate peer metrics", CallersRoutes: "public read call peer metrics", OperatorsRoutes: "public read operate",
	} {
		svc := &fake{worker: new(catalog.Worker)}
		listeners := listenersOf(svc, Options{Log: zerolog.Nop(), Part: part})
		visit(t, listeners, func(l onListener, method, path, inTable string) {
			if l.name == "debug" {
				return
			}
			called := false
			svc.call = func() { called = true }
			w := ask(l.engine, method, path, "", "{}")
			if here := strings.Contains(served, wanted[inTable].role); here == (w.Code == 404) || called && !here {
				t.Errorf("part %d, %s: %s %s: %d, the service was asked: %v", part, l.name, method, path, w.Code, called)
			}
		})
	}
}

// TestReadyNeedsNoToken: probes have none. They learn whether, not who.
func TestReadyNeedsNoToken(t *testing.T) {
	worker := func(id uint64, tenant string) *catalog.Worker {
		return &catalog.Worker{Record: catalog.Record{ID: id, Scope: catalog.Scope{Model: "m", Tenant: tenant}}}
	}
	h := New(&fake{ready: true, workers: []*catalog.Worker{worker(1, "own"), worker(2, "foreign")}}, (&fake{}).conductor(), Options{Log: zerolog.Nop(), Access: guardOf(t)})
	for token, want := range map[string][2]bool{"": {false, false}, "peer": {false, false}, "read": {true, true}, "own-read": {true, false}} {
		w := ask(h, "GET", "/ready", token, "")
		if own, foreign := strings.Contains(w.Body.String(), `"worker_id":1`), strings.Contains(w.Body.String(), `"worker_id":2`); w.Code != 200 || own != want[0] || foreign != want[1] {
			t.Errorf("%q: %d %s", token, w.Code, w.Body)
		}
	}
}

// TestBrowsers: no path of any listener answers a page of a foreign site, nor ever
// sends a header that would let one read the answer.
func TestBrowsers(t *testing.T) {
	for _, guard := range []*access.Guard{nil, guardOf(t)} {
		svc := &fake{worker: new(catalog.Worker)}
		listeners := listenersOf(svc, Options{Log: zerolog.Nop(), Access: guard})
		try := func(l onListener, method, path string) {
			for _, header := range [][2]string{{"Origin", "null"}, {"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
				called := false
				svc.call = func() { called = true }
				r := httptest.NewRequest(method, path, strings.NewReader("{}"))
				r.Header.Set(header[0], header[1])
				r.Header.Set("Authorization", "Bearer operate")
				w := httptest.NewRecorder()
				l.engine.ServeHTTP(w, r)
				if w.Code != 403 || called {
					t.Errorf("%s: %s %s with %s: %d", l.name, method, path, header, w.Code)
				}
				for name := range w.Header() {
					if strings.HasPrefix(name, "Access-Control-") {
						t.Errorf("%s: %s %s: %s", l.name, method, path, name)
					}
				}
			}
		}
		visit(t, listeners, func(l onListener, method, path, _ string) { try(l, method, path) })
		for _, l := range listeners {
			try(l, "OPTIONS", "/health")
			try(l, "OPTIONS", "*")
			try(l, "GET", "/nothing")
			try(l, "TRACE", "/conductor/nothing")
		}
	}
}

// TestAudit: each change writes one line that says who, from where, what and how it
// ended; what reads writes none, and refused changes fill no log.
func TestAudit(t *testing.T) {
	var log bytes.Buffer
	svc := &fake{worker: &catalog.Worker{Record: catalog.Record{ID: 7, Scope: catalog.Scope{Model: "m", Tenant: "t"}}}}
	h := New(svc, svc.conductor(), Options{Log: zerolog.New(&log).Level(zerolog.InfoLevel), Access: guardOf(t)})
	line := func(method, path, token, body string) string {
		log.Reset()
		ask(h, method, path, token, body)
		return log.String()
	}
	for _, tt := range []struct{ method, path, token, body, want string }{
		{"POST", "/workers", "operate", `{"worker_id":7,"model_name":"m","endpoint":"http://h:1"}`, `"who":"operate","address":"192.0.2.1","result":"ok","action":"POST /workers","worker_id":7,"model":"m","tenant":"default","endpoint":"http://h:1","status":201,"message":"audit"`},
		{"PUT", "/v1.6/workers", "operate", `{"routing_group":"t","workers":[]}`, `"tenant":"t","workers":0,"added":0,"changed":0,"removed":0,"status":200`},
		{"DELETE", "/workers/7", "operate", "", `"action":"DELETE /workers/7","worker_id":7,"model":"m","tenant":"t","status":200`},
		{"POST", "/v1.6/workers/7/drain", "operate", "{}", `"action":"POST /v1.6/workers/7/drain","worker_id":7,"model":"m","tenant":"t","status":200`},
		{"DELETE", "/workers/7/drain", "operate", "", `"action":"DELETE /workers/7/drain","worker_id":7,"model":"m","tenant":"t","status":200`},
		{"DELETE", "/workers/x", "operate", "", `"result":"refused"`},
		{"POST", "/workers", "read", `{}`, `"who":"read","address":"192.0.2.1","result":"refused","action":"POST /workers","error":"the token lacks the role operate","status":403`},
		{"POST", "/workers", "secret", `{}`, `"who":"anonymous"`},
		{"PUT", "/policies", "operate", `{"worker_selection":{"aggregated":"default"}}`, `"action":"PUT /policies","worker_selection":"d1ge57","changed":2,"changes":["aggregated","instances.p"],"status":200`},
		{"DELETE", "/policies", "operate", "", `"action":"DELETE /policies","worker_selection":"d1ge57","changed":2`},
		{"POST", "/busy_threshold", "operate", `{"model":"m","active_prefill_tokens_threshold":5}`, `"model":"m"`},
		{"POST", "/replica_sync/register_peer", "operate", `{"endpoint":"tcp://h:1"}`, `"endpoint":"tcp://h:1"`},
		{"POST", "/slots/register", "operate", `{"model_name":"m","worker_id":1,"block_size":1,"dp_start":0,"dp_size":1}`, `"worker_id":1,"model":"m","tenant":"default","status":201`},
		{"POST", "/conductor/register", "operate", `{"modelname":"m","type":"vLLM","instance_id":"i","block_size":1,"dp_rank":0,"endpoint":"tcp://h:1","additionalsalt":"salt-of-tenant"}`, `"instance":"i"`},
		{"POST", "/conductor/unregister", "operate", `{"instance_id":"i"}`, `"instance":"i","tenant":"default","removed":`},
	} {
		if got := line(tt.method, tt.path, tt.token, tt.body); strings.Count(got, "\n") != 1 || !strings.Contains(got, tt.want) ||
			strings.Contains(got, "secret") || strings.Contains(got, "salt-of-tenant") {
			t.Errorf("%s %s:\n got %s\nwant %s", tt.method, tt.path, got, tt.want)
		}
	}
	for _, path := range []string{"/workers", "/busy_threshold", "/conductor/services", "/nothing"} {
		if got := line("GET", path, "operate", ""); got != "" {
			t.Errorf("GET %s: %s", path, got)
		}
	}
	svc.call = func() { panic("a bug") }
	if got := line("DELETE", "/workers/7", "operate", ""); !strings.Contains(got, `"result":"refused"`) || !strings.Contains(got, `"status":500`) {
		t.Errorf("a panic: %s", got)
	}
	log.Reset()
	for range 1000 {
		ask(h, "POST", "/workers", "read", "{}")
	}
	if n := strings.Count(log.String(), "\n"); n > 100 {
		t.Errorf("1000 refused changes wrote %d lines", n)
	}
}
