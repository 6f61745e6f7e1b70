package attacks

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// tokens is a tokens file that is being written.
type tokens struct {
	path    string
	entries []string
	of      map[string]string // by name
}

func newTokens(t *testing.T) *tokens {
	return &tokens{path: filepath.Join(t.TempDir(), "tokens.yaml"), of: make(map[string]string)}
}

// add makes a token with the program.
func (to *tokens) add(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(e2e.Binary(t), append([]string{"token", "new", "--name", name}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	token, entry, _ := strings.Cut(string(out), "\n")
	to.of[name] = token
	to.entries = append(to.entries, entry)
	to.write(t)
}

func (to *tokens) write(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(to.path, []byte("tokens:\n"+strings.Join(to.entries, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// caller sends requests with a token.
type caller struct {
	t       *testing.T
	address string
	token   string
}

func (c caller) ask(method, path, body string) (int, string) {
	c.t.Helper()
	headers := "Host: " + c.address + "\nContent-Type: application/json"
	if c.token != "" {
		headers += "\nAuthorization: Bearer " + c.token
	}
	return raw(c.t, c.address, sent(method, path, headers, body))
}

func (c caller) must(status int, method, path, body string) string {
	c.t.Helper()
	got, answer := c.ask(method, path, body)
	if got != status {
		c.t.Errorf("%s %s %s: %d, want %d: %s", method, path, body, got, status, answer)
	}
	return answer
}

// TestForeignTenant: callers of two tenants; one tries to see, use, end or take over
// what the other has.
func TestForeignTenant(t *testing.T) {
	f := newTokens(t)
	f.add(t, "root", "--roles", "operate")
	for _, tenant := range []string{"a", "b"} {
		f.add(t, tenant, "--roles", "operate", "--tenant", tenant)
	}
	s := e2e.Serve(t, nil, "--listen", "127.0.0.1", "--use-kv-events=false", "--tokens-file", f.path, "--contract", "1.6")
	as := func(name string) caller { return caller{t, s.Address(), f.of[name]} }
	a, b, root := as("a"), as("b"), as("root")
	for id, tenant := range map[int]string{1: "a", 2: "b"} {
		as(tenant).must(201, "POST", "/workers", fmt.Sprintf(`{"worker_id":%d,"tenant_id":%q,"endpoint":"http://secret-%s:1","block_size":16}`, id, tenant, tenant))
	}
	a.must(200, "POST", "/select_and_reserve", `{"tenant_id":"a","selection_id":"r","token_ids":[1,2,3],"session_id":"s"}`)
	a.must(200, "POST", "/select", `{"tenant_id":"a","selection_id":"kept","token_ids":[1,2,3]}`)
	a.must(201, "POST", "/slots/add", `{"model_name":"default","tenant_id":"a","request_id":"slots","worker_id":1,"dp_rank":0,"sequence_hashes":[1]}`)
	a.must(200, "POST", "/conductor/register", `{"type":"vLLM","modelname":"m","tenant_id":"a","instance_id":"secret-a","block_size":16,"dp_rank":0,"endpoint":"tcp://127.0.0.1:1"}`)
	body := func(answer string) string { return answer[strings.Index(answer, "["):] } // its head has the time
	loads := body(root.must(200, "GET", "/loads", ""))

	for _, prefix := range []string{"", "/v1.3", "/v1.6"} {
		// Ends and renewals of a foreign reservation: as if it were not there.
		for _, path := range []string{"/renew", "/prefill_complete", "/output_block"} {
			known := b.must(404, "POST", prefix+"/reservations/r"+path, "{}")
			unknown := b.must(404, "POST", prefix+"/reservations/x"+path, "{}")
			if got, want := strings.SplitAfter(known, "{")[1], strings.SplitAfter(unknown, "{")[1]; strings.Replace(got, " r ", " x ", 1) != want {
				t.Errorf("%s: a foreign reservation: %s, an unknown one: %s", path, got, want)
			}
		}
		b.must(404, "DELETE", prefix+"/reservations/r", "")
		// What names a foreign tenant, none (the default one) or all.
		for _, tenant := range []string{`"tenant_id":"a",`, `"routing_group":"a",`, ``} {
			b.must(403, "POST", prefix+"/select", `{`+tenant+`"token_ids":[1]}`)
			b.must(403, "POST", prefix+"/select_and_reserve", `{`+tenant+`"token_ids":[1]}`)
			b.must(403, "POST", prefix+"/overlap_scores", `{`+tenant+`"token_ids":[1]}`)
			b.must(403, "POST", prefix+"/potential_loads", `{`+tenant+`"token_ids":[1]}`)
			b.must(403, "POST", prefix+"/diagnose", `{`+tenant+`"token_ids":[1]}`)
			b.must(403, "POST", prefix+"/reservations", `{`+tenant+`"reservation_id":"n","worker_id":1,"token_ids":[1]}`)
			b.must(403, "POST", prefix+"/workers", `{`+tenant+`"worker_id":9}`)
			b.must(403, "PUT", prefix+"/workers", `{`+tenant+`"workers":[]}`)
			b.must(403, "POST", prefix+"/slots/free", `{`+tenant+`"model_name":"default","request_id":"slots"}`)
		}
		// The ids of a foreign worker.
		b.must(409, "POST", prefix+"/workers", `{"worker_id":1,"tenant_id":"b","endpoint":"http://b:1"}`)
		b.must(404, "PATCH", prefix+"/workers/1", `{"endpoint":"http://b:1"}`)
		b.must(404, "DELETE", prefix+"/workers/1", "")
		b.must(409, "PUT", prefix+"/workers", `{"tenant_id":"b","workers":[{"worker_id":2,"endpoint":"http://b:1","block_size":16},{"worker_id":1,"endpoint":"http://b:1"}]}`)
		// Lists.
		for _, path := range []string{"/workers", "/loads", "/slots/workers", "/slots/loads", "/ready"} {
			if answer := b.must(200, "GET", prefix+path, ""); strings.Contains(answer, "secret-a") || strings.Contains(answer, `"a"`) || strings.Contains(answer, `"worker_id":1,`) {
				t.Errorf("GET %s shows %s", prefix+path, answer)
			}
		}
		b.must(403, "GET", prefix+"/loads?tenant_id=a", "")
		b.must(403, "GET", prefix+"/workers?routing_group=a", "")
		// What knows no tenants.
		for _, path := range []string{"/dump", "/replica_sync/snapshot", "/replica_sync/peers", "/busy_threshold", "/slots/peers"} {
			b.must(403, "GET", prefix+path, "")
		}
		b.must(403, "POST", prefix+"/replica_sync/register_peer", `{"endpoint":"tcp://h:1"}`)
	}
	// A foreign id is taken, but nothing says by what; a foreign pending selection and a
	// foreign session are not there.
	taken := b.must(409, "POST", "/v1.3/select_and_reserve", `{"tenant_id":"b","reservation_id":"r","if_exists":"return","token_ids":[1,2,3]}`)
	taken += b.must(409, "POST", "/v1.3/reservations", `{"tenant_id":"b","reservation_id":"r","worker_id":2,"token_ids":[1]}`)
	if strings.Contains(taken, "WorkerWithDpRank") || strings.Contains(taken, "secret") {
		t.Errorf("who has the id: %s", taken)
	}
	b.must(404, "POST", "/reservations", `{"tenant_id":"b","selection_id":"kept"}`)
	b.must(201, "POST", "/slots/add", `{"model_name":"default","tenant_id":"b","request_id":"slots","worker_id":2,"dp_rank":0,"sequence_hashes":[1]}`)
	b.must(200, "POST", "/slots/free", `{"model_name":"default","tenant_id":"b","request_id":"slots"}`)
	if answer := b.must(200, "GET", "/conductor/services", ""); strings.Contains(answer, "secret-a") || !strings.Contains(answer, `"selection_workers":1`) {
		t.Errorf("services: %s", answer)
	}
	if answer := b.must(200, "POST", "/conductor/diagnose", `{"tenant_id":"b","model":"m","block_size":16,"token_ids":[1]}`); strings.Contains(answer, `"a\"`) {
		t.Errorf("diagnose: %s", answer)
	}
	b.must(403, "POST", "/conductor/unregister", `{"tenant_id":"a","instance_id":"secret-a"}`)
	b.must(403, "POST", "/conductor/query", `{"tenant_id":"a","model":"m","block_size":16,"token_ids":[1]}`)

	if now := body(root.must(200, "GET", "/loads", "")); now != loads {
		t.Errorf("the loads have changed:\n%s\n%s", loads, now)
	}
	a.must(200, "POST", "/reservations/r/output_block", `{}`)
	a.must(200, "DELETE", "/reservations/r", "")
	if text := s.Output(); strings.Contains(text, f.of["a"]) || strings.Contains(text, f.of["b"]) || strings.Contains(text, f.of["root"]) {
		t.Error("a token is in the log")
	}
}

// TestGuessing: a flood of wrong tokens, in all forms. None is let in, the answers
// become 429, a right token is served all the while, and the log has neither.
func TestGuessing(t *testing.T) {
	f := newTokens(t)
	f.add(t, "caller", "--roles", "call")
	s := e2e.Serve(t, nil, "--listen", "127.0.0.1", "--tokens-file", f.path, "--log-level", "debug")
	token := f.of["caller"]
	ask := func(authorization, path string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		res, err := s.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode == 429 && res.Header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
		return res.StatusCode
	}
	answers := map[int]int{}
	for i := range 2000 {
		guess := fmt.Sprintf("Bearer guess-%d", i)
		if i%3 == 0 {
			guess = "Bearer " + token[:len(token)-1-i%7]
		}
		answers[ask(guess, "/workers")]++
		if i%100 == 0 {
			if status := ask("Bearer "+token, "/workers"); status != 200 {
				t.Fatalf("a right token beside the guesses: %d", status)
			}
		}
	}
	if answers[401]+answers[429] != 2000 || answers[429] < 1000 {
		t.Errorf("answers by status: %v", answers)
	}
	for path, want := range map[string]int{
		"/workers?access_token=" + token: 401, "/health": 200, "/ready": 503, "/metrics": 401, "/none": 401, "/debug/pprof/": 401, "/workers/": 401, "//workers": 401, "/v1.3/../workers": 401,
	} {
		if status := ask("", path); status != want {
			t.Errorf("GET %s without a token: %d, want %d", path, status, want)
		}
	}
	// A panic and the access log show paths, no headers.
	if text := s.Output(); strings.Contains(text, token) || strings.Contains(text, "guess-1") {
		t.Error("a token is in the log")
	}
}

// TestRevokedToken: a changed file counts without a restart, at once with SIGHUP; a
// broken one changes nothing; an empty one lets nobody in.
func TestRevokedToken(t *testing.T) {
	f := newTokens(t)
	f.add(t, "old", "--roles", "read")
	admin := strconv.Itoa(e2e.FreePort(t))
	s := e2e.Serve(t, nil, "--listen", "127.0.0.1", "--tokens-file", f.path, "--admin-listen", "127.0.0.1:"+admin)
	status := func(name string) int {
		got, _ := caller{t, s.Address(), f.of[name]}.ask("GET", "/workers", "")
		return got
	}
	wait := func(name string, want int) {
		t.Helper()
		e2e.Eventually(t, fmt.Sprintf("%s gets %d", name, want), func() error {
			if got := status(name); got != want {
				return fmt.Errorf("it gets %d", got)
			}
			return nil
		})
	}
	f.add(t, "new", "--roles", "operate")
	wait("new", 200)
	f.entries = f.entries[1:]
	f.write(t)
	if err := s.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("old", 401)

	// The operators' routes are on the admin listener and nowhere else.
	operator := caller{t, s.Address(), f.of["new"]}
	operator.must(404, "POST", "/workers", `{"worker_id":1}`)
	operator.must(404, "PUT", "/v1.6/workers", `{"workers":[]}`)
	operator.must(404, "DELETE", "/workers/1", "")
	operator.must(404, "POST", "/conductor/register", `{}`)
	operator.address = "127.0.0.1:" + admin
	operator.must(201, "POST", "/workers", `{"worker_id":1}`)
	operator.must(200, "GET", "/workers", "")
	operator.must(404, "POST", "/select", `{"token_ids":[1]}`)

	if err := os.WriteFile(f.path, []byte("tokens: broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the broken file is noticed", func() error {
		if !strings.Contains(s.Output(), "tokens file: not reloaded") {
			return fmt.Errorf("not in the log")
		}
		return nil
	})
	wait("new", 200)
	f.entries = nil
	if err := os.WriteFile(f.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wait("new", 401)
	for _, want := range []string{`"who":"file","action":"reload tokens file","result":"ok"`, `"who":"new"`, `"action":"POST /workers"`} {
		e2e.Eventually(t, "the audit is logged", func() error { return logged(s.Process, want) })
	}
}
