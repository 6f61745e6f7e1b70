package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/conformance"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/checks/openapi"
)

const folder = "../../../testdata/conformance"

// commandEnv names another server to play the recorded scenarios against, for
// example "python -m dynamo.select_service --port {port}".
const commandEnv = "SELECT_SERVICE_CMD"

// way is how a folder of scenarios is played.
type way struct {
	name, folder string
	contract     string // that the service follows
	listener     string // where the selection service has the listener's routes
	prefix       string // of the dialect; "": that of the contract
}

// ways are all of them. Scenarios are played against the contract that they are
// of, and again below its prefix against a service that follows the other one:
// names, answers and statuses must not depend on that.
var ways = []way{
	{"selection", "selection", "1.3", "", ""},
	{"rejection", "rejection", "1.3", "", ""},
	{"slots", "slots", "1.3", "/slots", ""},
	{"conductor", "conductor", "1.3", "/conductor", ""},
	{"selection16", "selection16", "1.6", "", ""},
	{"slots16", "slots16", "1.6", "/slots", ""},

	{"selection-prefixed", "selection", "1.6", "", "/v1.3"},
	{"rejection-prefixed", "rejection", "1.6", "", "/v1.3"},
	{"slots-prefixed", "slots", "1.6", "/slots", "/v1.3"},
	{"selection16-prefixed", "selection16", "1.3", "", "/v1.6"},
	{"slots16-prefixed", "slots16", "1.3", "/slots", "/v1.6"},
}

// flags start the service so that {port} is the listener.
func (w way) flags() []string {
	flags := []string{"--contract", w.contract}
	switch w.listener {
	case "/slots":
		return append(flags, "--slots-port", "{port}", "--port", "0")
	case "/conductor":
		return append(flags, "--conductor-port", "{port}", "--port", "0")
	}
	if w.prefix == "/v1.3" {
		// Many scenarios do without KV events, instead of which the 1.6 contract
		// predicts what is cached.
		flags = append(flags, "--router-ttl-secs", "0")
	}
	return append(flags, "--port", "{port}")
}

// described returns a check that answers, and the bodies of requests that are
// served, are what the service's own description says. Other servers have none.
func (w way) described(t *testing.T) func(conformance.Exchange) error {
	t.Helper()
	if os.Getenv(commandEnv) != "" {
		return nil
	}
	v, err := openapi.Load(w.contract)
	if err != nil {
		t.Fatal(err)
	}
	v = v.Under(w.listener)
	return func(e conformance.Exchange) error {
		if err := v.Answer(e.Method, e.Target, e.Status, e.Header, e.Body); err != nil || e.Status >= 300 {
			return err
		}
		return v.Request(e.Method, e.Target, e.RequestHeader, e.Request)
	}
}

// skipped tells why a scenario is not played this way, "" if it is.
func (w way) skipped(sc *conformance.Scenario) string {
	switch {
	case os.Getenv(commandEnv) != "" && (sc.Decided != nil || w.prefix != ""):
		return "decided, not recorded"
	case w.prefix != "" && sc.StartFails != nil:
		return "there is nothing to ask"
	}
	return ""
}

// TestScenarios plays every scenario against a service of its own.
func TestScenarios(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			check := w.described(t)
			for i, sc := range load(t, w.folder) {
				if testing.Short() && w.prefix != "" && i%3 > 0 {
					continue // the same again, but for the path
				}
				t.Run(sc.Name, func(t *testing.T) {
					if why := w.skipped(sc); why != "" {
						t.Skip(why)
					}
					t.Parallel()
					conformance.Play(t, sc, host{w.flags()}, conformance.Options{Prefix: w.prefix, Check: check})
				})
			}
		})
	}
}

// TestScenariosAreReadable proves that every scenario uses only what the player
// knows, and that names are unique.
func TestScenariosAreReadable(t *testing.T) {
	names := map[string]bool{}
	for _, w := range ways {
		if w.prefix != "" {
			continue
		}
		for _, sc := range load(t, w.folder) {
			if names[sc.Name] {
				t.Errorf("two scenarios are called %s", sc.Name)
			}
			names[sc.Name] = true
			if len(sc.Steps) == 0 && sc.StartFails == nil {
				t.Errorf("%s has no steps", sc.Name)
			}
		}
	}
}

func load(t *testing.T, name string) []*conformance.Scenario {
	t.Helper()
	scenarios, err := conformance.LoadDir(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	if len(scenarios) == 0 {
		t.Fatalf("no scenarios in %s", name)
	}
	return scenarios
}

// host starts the built service, or the server of commandEnv.
type host struct{ flags []string }

func (h host) FreePort(tb testing.TB) int { return e2e.FreePort(tb) }

func (h host) Start(tb testing.TB, env map[string]string, args []string) conformance.Server {
	tb.Helper()
	port := e2e.FreePort(tb)
	command := strings.Fields(os.Getenv(commandEnv))
	if len(command) == 0 {
		command = append([]string{e2e.Binary(tb)}, h.flags...)
	}
	for i, word := range command {
		command[i] = strings.ReplaceAll(word, "{port}", fmt.Sprint(port))
	}
	return e2e.Start(tb, e2e.Options{
		Command: append(command, args...), Env: env, Address: fmt.Sprintf("127.0.0.1:%d", port),
	})
}
