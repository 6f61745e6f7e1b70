package docs

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// programsVariable names the folders in which litellm, claude, codex, smg and vllm-router are, as PATH does
// (scripts/test-tutorials.sh installs them). Without it stand-in sends the requests of the first three.
const programsVariable = "TUTORIALS_PROGRAMS"

// screen is how many lines a tutorial may have.
const screen = 50

// tutorials has, for each page, what a step of it prints if it has a command.
var tutorials = map[string]map[string]string{
	"vllm.md":                {"/v1/chat/completions": `"content":" \w+`, "doctor": "^0 findings", "decisions": "MODEL"},
	"sglang.md":              {"/v1/chat/completions": `"content":" \w+`, "doctor": "^0 findings", "decisions": "MODEL"},
	"litellm.md":             {"/v1/chat/completions": `"content":" \w+`, "decisions": "MODEL"},
	"production-stack.md":    {"/v1/chat/completions": `"content":" \w+`},
	"smg-and-vllm-router.md": {"/v1/chat/completions": `"content":" \w+`},
	"coding-agents.md":       {"claude -p": `\w`, "codex exec": `\w`, "decisions": "MODEL"},
}

// TestTutorials plays each tutorial as it is printed, but for the addresses. Simulated engines stand for the
// servers with GPUs; SGLang's real server does not start without one, and that of vLLM is played by make test-vllm.
// Afterwards as many prompt tokens were cached as had been predicted, and every request was booked.
func TestTutorials(t *testing.T) {
	root := rootOf(t)
	found, err := filepath.Glob(filepath.Join(root, "docs/start/tutorials/*.md"))
	if err != nil || len(found) != len(tutorials) {
		t.Errorf("there are %d tutorials (%v), the test knows %d", len(found), err, len(tutorials))
	}
	for page, prints := range tutorials {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			path := "docs/start/tutorials/" + page
			text := read(t, root, path)
			if lines := strings.Count(text, "\n"); lines > screen {
				t.Errorf("%d lines are more than a screen of %d", lines, screen)
			}
			steps, service := localSteps(t, text)
			extra := []step{{script: "curl -s http://127.0.0.1:" + service + "/metrics\n"}}
			if page == "coding-agents.md" { // a second time, so that there is something in the caches
				extra = slices.Insert(extra, 0, steps[1:3]...)
			}
			dir := t.TempDir()
			env := installTutorial(t, root, dir)
			steps = append(steps, extra...)
			if run(t, dir, path, steps, env...) < len(steps) {
				for _, log := range []string{"service.log", "litellm.log"} {
					t.Logf("%s:\n%s", log, read(t, dir, log))
				}
				return
			}
			for command, want := range prints {
				i := slices.IndexFunc(steps, func(s step) bool { return strings.Contains(s.script, command) })
				if i < 0 {
					t.Errorf("no step has %q", command)
				} else if got := read(t, dir, fmt.Sprintf("output.%d", i)); !regexp.MustCompile("(?m)" + want).MatchString(got) {
					t.Errorf("%s printed %q, want %q", command, got, want)
				}
			}
			checkPlayed(t, read(t, dir, fmt.Sprintf("output.%d", len(steps)-1)), page == "coding-agents.md")
		})
	}
}

// localSteps returns the steps of a tutorial with simulated engines and free ports, and the service's own port.
func localSteps(t *testing.T, text string) (steps []step, service string) {
	t.Helper()
	urls := enginesOf(t, text)
	text = regexp.MustCompile(`http://gpu-1:\d+`).ReplaceAllString(text, urls[0])
	text = regexp.MustCompile(`http://gpu-2:\d+`).ReplaceAllString(text, urls[1])
	flag := regexp.MustCompile(`--proxy-port (\d+)`).FindStringSubmatch(text)
	if flag == nil {
		t.Fatal("the page starts no proxy")
	}
	service = strconv.Itoa(e2e.FreePort(t))
	text = strings.ReplaceAll(text, flag[0], "--port "+service+" "+flag[0])
	text = strings.ReplaceAll(text, "bin/selectctl ", "bin/selectctl --url http://127.0.0.1:"+service+" ")
	text = strings.ReplaceAll(text, "localhost:8092", "localhost:"+service)
	ports := []string{flag[1]}
	if strings.Contains(text, "--port 4000") {
		ports = append(ports, "4000") // LiteLLM's
	}
	steps, err := session(onFreePorts(t, text, ports...))
	if err != nil {
		t.Fatal(err)
	}
	return steps, service
}

// checkPlayed checks the metrics behind a tutorial. hit: prompts were in the caches.
func checkPlayed(t *testing.T, metrics string, hit bool) {
	t.Helper()
	value := func(series string) (sum float64) {
		for _, m := range regexp.MustCompile(`(?m)^select_service_gateway_`+series+` (\S+)$`).FindAllStringSubmatch(metrics, -1) {
			v, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
		return sum
	}
	const via = `[^}\n]*via="proxy"[^}\n]*`
	booked, refused := value(`requests_total\{outcome="booked",via="proxy"\}`), value(`requests_total\{outcome="path",via="proxy"\}`)
	if all := value(`requests_total\{` + via + `\}`); booked == 0 || booked+refused != all { // agents also look at /
		t.Errorf("of %v requests %v were booked", all, booked)
	}
	if failed := value(`tokenizer_failures_total\{[^}\n]*\}`); failed != 0 {
		t.Errorf("the tokenizer failed %v times", failed)
	}
	cached, predicted := value(`cached_tokens_sum\{`+via+`\}`), value(`cached_tokens_predicted_sum\{`+via+`\}`)
	if cached != predicted || hit != (cached > 0) {
		t.Errorf("%v tokens were cached, %v were predicted", cached, predicted)
	}
}

// enginesOf starts two engines as the page starts its own, vLLM's if it starts none, and returns their URLs.
func enginesOf(t *testing.T, text string) (urls [2]string) {
	t.Helper()
	model, kind := "MODEL", "vllm"
	if strings.Contains(text, "```bash\n") && !strings.Contains(text, "**Before") {
		model, kind = engineCommand(t, block(t, text, "bash"))
	}
	args := []string{"--model", model, "--speedup", "100"}
	if kind == "sglang" {
		args = append(args, "--block-size", "64")
	}
	_, engines := e2e.Engines(t, 2, args...)
	for i, e := range engines {
		urls[i] = e.URL
		if kind == "sglang" {
			urls[i] = asSGLang(t, model, e)
		}
	}
	return urls
}

// engineCommand reads the command by which a page starts an engine: its model, and vllm or sglang. The command has
// to switch its KV events on, at the ports that the page's text names.
func engineCommand(t *testing.T, command string) (model, kind string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bash", "-euc", `show() { for arg; do printf '%s\0' "$arg"; done; }; vllm() { show vllm "$@"; }; python3() { show python3 "$@"; }
		`+command).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, command)
	}
	args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	after := func(flag string) string {
		i := slices.Index(args, flag)
		if i < 0 || i+1 == len(args) {
			t.Fatalf("the command has no %s: %q", flag, args)
		}
		return args[i+1]
	}
	var events struct {
		Enable    *bool  `json:"enable_kv_cache_events"` // vLLM's
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
	}
	dec := json.NewDecoder(strings.NewReader(after("--kv-events-config")))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&events); err != nil || events.Publisher != "zmq" || events.Endpoint != "tcp://*:5557" || events.Replay != "tcp://*:5558" {
		t.Errorf("KV events: %+v, %v", events, err)
	}
	switch {
	case args[0] == "vllm" && args[1] == "serve" && events.Enable != nil && *events.Enable && after("--port") == "8000":
		return args[2], "vllm"
	case args[0] == "python3" && args[2] == "sglang.launch_server" && events.Enable == nil && after("--port") == "30000" && after("--page-size") == "64":
		return after("--model-path"), "sglang"
	}
	t.Fatalf("no command of vLLM or SGLang: %q", args)
	return "", ""
}

// asSGLang puts SGLang's answers about itself before a simulated engine. The routes that clients and the tokenizer
// call are alike in both: SGLang 0.5.23 takes the messages of a chat at /tokenize, too (TokenizeRequest in
// sglang/srt/entrypoints/openai/protocol.py of its wheel).
func asSGLang(t *testing.T, model string, e e2e.Engine) string {
	t.Helper()
	port := func(endpoint string) string { return endpoint[strings.LastIndex(endpoint, ":")+1:] }
	answers := map[string]string{
		"/v1/models": fmt.Sprintf(`{"data": [{"id": %q, "parent": null}]}`, model),
		"/server_info": fmt.Sprintf(`{"version": "0.5.23", "page_size": 64, "dp_size": 1, "max_total_num_tokens": 262144, "kv_events": {"publisher": "zmq",
			"endpoint_host": "*", "endpoint_port_base": %s, "replay_endpoint_port_base": %s, "topic": "", "block_size": 64, "dp_size": 1}}`, port(e.Events), port(e.Replay)),
	}
	base, err := url.Parse(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	engine := httputil.NewSingleHostReverseProxy(base)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch text, known := answers[r.URL.Path]; {
		case known:
			_, _ = io.WriteString(w, text)
		case strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == "/tokenize":
			engine.ServeHTTP(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// installTutorial puts the programs into dir/bin, with the stand-ins of those that are not installed, and returns
// the environment of the shell: a home of its own, and no other network than the loopback.
func installTutorial(t *testing.T, root, dir string) (env []string) {
	t.Helper()
	bin := filepath.Join(dir, "bin")
	install(t, bin, "")
	if err := os.Symlink(e2e.Program(t, "./cmd/selectctl"), filepath.Join(bin, "selectctl")); err != nil {
		t.Fatal(err)
	}
	path := os.Getenv(programsVariable)
	if path == "" {
		path = filepath.Join(dir, "stand-ins")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"litellm", "claude", "codex"} {
			if err := os.Symlink(e2e.Program(t, "./test/checks/docs/stand-in"), filepath.Join(path, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return []string{
		"PATH=" + path + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + dir,
		"LITELLM_LOCAL_MODEL_COST_MAP=True", "CODEX_HOME=" + filepath.Join(dir, ".codex"),
	}
}

var flagOf = regexp.MustCompile("`(--[a-z0-9-]+)")

// productionStack has the router's flags, from the source that the page names.
const productionStack = "--host --port --service-discovery --k8s-service-discovery-type --static-backends --static-models --static-aliases " +
	"--static-model-types --static-model-labels --static-backend-health-checks --k8s-port --k8s-namespace --k8s-label-selector " +
	"--k8s-watcher-timeout-seconds --backend-health-check-timeout-seconds --routing-logic --lmcache-controller-port --session-key --callbacks " +
	"--request-rewriter --enable-batch-api --file-storage-class --file-storage-path --batch-processor --engine-stats-interval " +
	"--request-stats-window --log-stats --log-stats-interval --dynamic-config-yaml --dynamic-config-json --version --feature-gates --log-level " +
	"--sentry-dsn --sentry-traces-sample-rate --sentry-profile-session-sample-rate --otel-endpoint --otel-service-name --otel-secure " +
	"--prefill-model-labels --decode-model-labels --kv-aware-threshold --lmcache-health-check-interval --lmcache-worker-timeout"

// TestTutorialFlags proves that the flags in the tables exist: the service's, production-stack's, and, with the
// programs installed, those of SMG and vllm-router as these say themselves.
func TestTutorialFlags(t *testing.T) {
	t.Parallel()
	root := rootOf(t)
	help := func(name string, args ...string) []string {
		out, err := exec.CommandContext(t.Context(), name, args...).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return regexp.MustCompile(`--[a-z0-9-]+`).FindAllString(string(out), -1)
	}
	columns := map[string][][]string{ // of each page the flags that its columns may have; nil: not checked
		"production-stack.md":    {strings.Fields(productionStack), help(e2e.Binary(t), "--help-all")},
		"smg-and-vllm-router.md": {nil, nil, help(e2e.Binary(t), "--help-all")},
	}
	if dirs := filepath.SplitList(os.Getenv(programsVariable)); len(dirs) > 0 {
		program := func(name string) string {
			for _, dir := range dirs {
				if path := filepath.Join(dir, name); exists(path) {
					return path
				}
			}
			t.Fatalf("%s is not in %v", name, dirs)
			return ""
		}
		page := columns["smg-and-vllm-router.md"]
		page[0], page[1] = help(program("smg"), "launch", "--help"), help(program("vllm-router"), "--help")
	}
	for page, known := range columns {
		rows := 0
		for line := range strings.Lines(read(t, root, "docs/start/tutorials/"+page)) {
			cells := strings.Split(line, "|")
			if len(cells) != len(known)+2 {
				continue
			}
			rows++
			for i, flags := range known {
				for _, m := range flagOf.FindAllStringSubmatch(cells[i+1], -1) {
					if flags != nil && !slices.Contains(flags, m[1]) {
						t.Errorf("%s: column %d names %s, which does not exist", page, i+1, m[1])
					}
				}
			}
			if first, same := cells[1], cells[2]; known[len(known)-2] != nil && strings.TrimSpace(same) == "the same" {
				for _, m := range flagOf.FindAllStringSubmatch(first, -1) {
					if !slices.Contains(known[1], m[1]) {
						t.Errorf("%s: the other program has no %s", page, m[1])
					}
				}
			}
		}
		if rows < 10 {
			t.Errorf("%s has %d rows", page, rows)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
