package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file")

// asProgram is set where the test's own binary is run as selectctl.
const asProgram = "SELECTCTL_IS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	e2e.Main(m)
}

// program puts selectctl into a folder, and returns that and the environment in which a shell finds
// it and its service.
func program(t *testing.T, service string) (dir string, env []string) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Symlink(own, filepath.Join(dir, "selectctl")); err != nil {
		t.Fatal(err)
	}
	return dir, append(os.Environ(), asProgram+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "SELECT_SERVICE_URL="+service, "HOME="+dir, "XDG_CONFIG_HOME="+dir)
}

// start starts a service without workers and returns its URL.
func start(t *testing.T) string {
	t.Helper()
	port := strconv.Itoa(e2e.FreePort(t))
	url := "http://127.0.0.1:" + port
	tokenizer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // a token for each word
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": make([]int, len(bytes.Fields(text))), "max_model_len": 4096})
	}))
	t.Cleanup(tokenizer.Close)
	e2e.Start(t, e2e.Options{Command: []string{e2e.Binary(t), "--port", port, "--use-kv-events=false", "--session-affinity-ttl-secs=60", "--session-groups", "--tokenizer-url", tokenizer.URL}})
	e2e.Eventually(t, "the service answers", func() error {
		_, err := e2e.Call(t.Context(), http.DefaultClient, http.MethodGet, url+"/health", nil)
		return err
	})
	return url
}

// varying are the parts of answers that differ from run to run.
var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`), "TIME"},
	{regexp.MustCompile(`"time": "[^"]*"`), `"time": "TIME"`},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "SERVICE"},
}

// TestCommands plays command lines on a running service and compares what they write, with
// their exit codes, with a golden file (-rewrite writes it).
func TestCommands(t *testing.T) {
	t.Setenv("SELECT_SERVICE_URL", start(t))
	lines, err := os.ReadFile("testdata/commands.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(lines)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		command, stdin, _ := strings.Cut(line, " <<< ")
		var out bytes.Buffer
		code := run(t.Context(), strings.Fields(command), strings.NewReader(stdin), &out, &out)
		text := out.String()
		for _, v := range varying {
			text = v.pattern.ReplaceAllString(text, v.with)
		}
		fmt.Fprintf(&got, "$ selectctl %s\n%s", line, text)
		if code != 0 {
			fmt.Fprintf(&got, "exit code %d\n", code)
		}
		got.WriteString("\n")
	}
	golden := filepath.Join("testdata", "commands.golden")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the answers differ from %s (-rewrite writes it):\n%s", golden, got.String())
	}
}

// TestBench: calls are counted, and the first failure is the program's.
func TestBench(t *testing.T) {
	service := start(t)
	code := 0
	var errs bytes.Buffer
	for lasts := 50 * time.Millisecond; code == 0 && lasts < time.Minute; lasts *= 2 { // a busy machine ends no call that soon
		var out bytes.Buffer
		code = run(t.Context(), []string{"bench", "--url", service, "--for", lasts.String(), "-o", "json"}, nil, &out, &errs)
	}
	if code != exitFailed || !strings.Contains(errs.String(), "no schedulable workers") {
		t.Errorf("without a worker bench ended with %d: %s", code, errs.String())
	}
}

// TestDistribution: the text of --hdr has the lines that plotters of HdrHistogram's text read, with rising
// values, up to all calls, and is in milliseconds.
func TestDistribution(t *testing.T) {
	const calls, takes = 50, 2 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var come atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-time.After(takes)
		_, _ = io.WriteString(w, `{"worker_id": 1, "dp_rank": 0}`)
		if come.Add(1) == calls {
			stop()
		}
	}))
	defer service.Close()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"bench", "--url", service.URL, "--tokens", "1", "--for", "1h", "--hdr"}, nil, &out, &errs); code != exitFailed {
		t.Fatalf("interrupted, it ended with %d: %s", code, &errs)
	}
	lines := regexp.MustCompile(`(?m)^ *([\d.]+) +([\d.]+) +(\d+) +([\d.]+|inf)$`).FindAllStringSubmatch(out.String(), -1)
	total := regexp.MustCompile(`(?m)^#\[Max .*Total count *= *(\d+)\]$`).FindStringSubmatch(out.String())
	if len(lines) < 3 || total == nil || lines[len(lines)-1][3] != total[1] {
		t.Fatalf("%q of\n%s", total, &out)
	}
	value, percentile := float64(takes)/1e6, -1.0
	for _, line := range lines {
		v, _ := strconv.ParseFloat(line[1], 64)
		p, _ := strconv.ParseFloat(line[2], 64)
		if v < value || p < percentile {
			t.Errorf("%q after %g %g", line[0], value, percentile)
		}
		value, percentile = v, p
	}
}

// TestVerdict: the sentence says how far the chosen rank is ahead, or that another one costs less.
func TestVerdict(t *testing.T) {
	for want, costs := range map[string][]float64{ // that of the chosen one first
		"worker 0 rank 0 (policy p, 7 tokens)":                                             {5},
		"worker 0 rank 0, 2 blocks ahead of the next (policy p, 7 tokens)":                 {5, 9, 7},
		"worker 0 rank 0, 0 blocks ahead of the next (policy p, 7 tokens)":                 {5, 5},
		"worker 0 rank 0, though worker 2 rank 0 costs 3 blocks less (policy p, 7 tokens)": {5, 4, 2},
	} {
		e := client.Explanation{Policy: "p", ISLTokens: 7, Chosen: new(client.ChosenRank)}
		for i, cost := range costs {
			e.Candidates = append(e.Candidates, client.ExplainedRank{Worker: uint64(i), Cost: cost, Unit: "blocks"})
		}
		if got := verdict(&e); got != want {
			t.Errorf("costs %v: %q, want %q", costs, got, want)
		}
	}
}

// TestAdvice: errors of the connection say what to do.
func TestAdvice(t *testing.T) {
	service := httptest.NewUnstartedServer(http.NotFoundHandler())
	service.Config.ErrorLog = log.New(io.Discard, "", 0)
	service.StartTLS()
	defer service.Close()
	var out bytes.Buffer
	code := run(t.Context(), []string{"status", "--url", service.URL}, nil, &out, &out)
	for tries := 0; tries < 20 && strings.Contains(out.String(), "TLS handshake timeout"); tries++ { // the machine is busy
		out.Reset()
		code = run(t.Context(), []string{"status", "--url", service.URL}, nil, &out, &out)
	}
	if code != exitFailed || !strings.Contains(out.String(), "--ca FILE") {
		t.Errorf("a certificate of nobody: %d %s", code, &out)
	}
	if text := advise(&client.LostError{Err: &net.DNSError{Name: "nowhere", IsNotFound: true}}, ""); !strings.Contains(text, "is --url right?") {
		t.Errorf("no such host: %s", text)
	}
}

// TestTables: what is not known is left empty, a replica that has gone is not compared, and a table that goes
// on has no second head.
func TestTables(t *testing.T) {
	text := func(tables ...*table) string {
		var out strings.Builder
		for _, t := range tables {
			_ = t.write(&out, false, func(cell string) string { return cell })
		}
		return out.String()
	}
	ranks := rankTable([]client.FleetRow{{State: "ready", Reported: &client.FleetReported{Waiting: new(uint64(3)), Stale: true}}})
	if got := text(ranks); !strings.Contains(got, "0       -   0        0       -         3 waiting, too old to count") {
		t.Errorf("a rank:\n%s", got)
	}
	peers := replicaTable(&client.Replicas{Peers: []client.Peer{{Endpoint: "tcp://b:1", Connected: true, Processes: []client.PeerProcess{
		{Process: "1", Absent: true, Read: new(time.Now()), ThresholdsDiffer: []string{"m"}}, {Process: "2", Read: new(time.Now()), PoliciesAgree: true},
	}}}})
	if got := text(peers); !strings.Contains(got, "gone") || strings.Contains(got, "differ") {
		t.Errorf("replicas:\n%s", got)
	}
	one, two := decisionTable([]client.Decision{{ID: "a"}}), decisionTable([]client.Decision{{ID: "b"}})
	two.continues = true
	if got := text(one, two); strings.Count(got, "MODEL") != 1 || strings.Count(got, "\n") != 3 {
		t.Errorf("decisions:\n%s", got)
	}
}

// TestFit: a live table keeps its head in a small window, and says what it leaves out.
func TestFit(t *testing.T) {
	const text = "head\nä long line\nthree  \nfour\n"
	for _, c := range []struct {
		width, height int
		want          string
	}{
		{80, 24, "head\nä long line\nthree\nfour"},
		{80, 4, "head\nä long line\nthree\nfour"},
		{6, 3, "head\nä long\n2 more"},
		{80, 1, "head\nä long line\nthree\nfour"}, // no window is so small
	} {
		if got := fit(text, c.width, c.height); got != c.want {
			t.Errorf("%d × %d: %q, want %q", c.width, c.height, got, c.want)
		}
	}
}

// TestContexts: the service is the one of the command line, else of the environment, else of the
// chosen context.
func TestContexts(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("SELECT_SERVICE_URL", "")
	write := func(text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(home, "selectctl"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, "selectctl", "config.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	urlOf := func(args ...string) string {
		t.Helper()
		a := &app{}
		root := a.root()
		if err := root.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		if err := a.connect(root); err != nil {
			return err.Error()
		}
		defer a.service.Close()
		return a.options.URL
	}
	want := func(got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	want(urlOf(), defaultURL)
	write("current_context: a\ncontexts:\n  a: {url: 'http://a:1'}\n  b: {url: 'https://b:2'}\n")
	want(urlOf(), "http://a:1")
	want(urlOf("--context", "b"), "https://b:2")
	want(urlOf("--context", "c"), `no context "c"`)
	want(urlOf("--url", "http://c:3"), "http://c:3")
	want(urlOf("--url", "http://c:3", "--context", "c"), `no context "c"`)
	write("contexts:\n  a: {url: 'http://a:1', token_file: /nowhere}\ncurrent_context: a\n")
	want(urlOf("--url", "http://c:3"), "http://c:3")
	want(urlOf("--url", "http://c:3", "--context", "a"), "/nowhere")
	var out bytes.Buffer
	if code := run(t.Context(), []string{"token", "--name", "ops"}, nil, &out, &out); code != exitOK { // it needs no service, and no context
		t.Errorf("token: %d %s", code, &out)
	}
	write("current_context: a\ncontexts:\n  a: {url: 'http://a:1'}\n  b: {url: 'https://b:2'}\n")
	t.Setenv("SELECT_SERVICE_URL", "http://d:4")
	want(urlOf(), "http://d:4")
	want(urlOf("--context", "b"), "https://b:2")
	write("contexts: {a: {uri: x}}")
	want(urlOf("--context", "a"), "field uri not found")
	t.Setenv("SELECT_SERVICE_URL", "")
	for want, args := range map[string][]string{ // they need no service, either
		"Available Commands": {}, "undrain": {"help", "workers"}, "__start_selectctl": {"completion", "bash"}, "workers": {cobra.ShellCompRequestCmd, "wor"},
	} {
		out.Reset()
		if code := run(t.Context(), args, nil, &out, &out); code != exitOK || !strings.Contains(out.String(), want) {
			t.Errorf("%q: %d %s", args, code, &out)
		}
	}
}

// TestRecords: a text has the records of all its documents, and one without any is no empty list, which
// would remove all workers.
func TestRecords(t *testing.T) {
	for text, want := range map[string]string{
		"- worker_id: 1\n- worker_id: 2\n":                           `[{"worker_id":1},{"worker_id":2}]`,
		"worker_id: 1\n---\n# another\n---\nworkers: [worker_id: 2]": `[{"worker_id":1},{"worker_id":2}]`,
		"worker_id: 18446744073709551615":                            `[{"worker_id":18446744073709551615}]`,
		"worker_id: 1\nkv_events_endpoints: {0: a, 1: b}":            `[{"kv_events_endpoints":{"0":"a","1":"b"},"worker_id":1}]`,
		"[]":          `[]`,
		"workers: []": `[]`,
		"":            "it has no records: write [] if there are to be none",
		"# none\n---": "it has no records: write [] if there are to be none",
		"workers:":    "workers is empty: write [] if there are to be none",
		"7":           "a document is 7, want records of workers",
	} {
		list, err := decodeRecords([]byte(text))
		got, marshalErr := json.Marshal(list)
		if marshalErr != nil {
			t.Fatal(marshalErr)
		}
		if err != nil {
			got = []byte(err.Error())
		}
		if string(got) != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestWhereSession: an explanation says where the session of the request was, and why it goes elsewhere.
func TestWhereSession(t *testing.T) {
	home := &client.Rank{Worker: 3, DPRank: 1}
	for _, x := range []struct {
		e    client.Explanation
		want string
	}{
		{client.Explanation{}, ""},
		{client.Explanation{Session: "a"}, "session a: it has no home yet"},
		{client.Explanation{Session: "a", Home: home, Chosen: &client.ChosenRank{Rank: *home}}, "session a: it stays at home"},
		{
			client.Explanation{Session: "a", Group: "b", Home: home, Chosen: &client.ChosenRank{}, MovedBecause: "overloaded"},
			"session a, started by b: its home is worker 3 rank 1; it goes elsewhere: overloaded",
		},
		{client.Explanation{Session: strings.Repeat("ä", 256)}, "session " + strings.Repeat("ä", 39) + "…: it has no home yet"},
	} {
		if got := whereSession(&x.e); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
}
