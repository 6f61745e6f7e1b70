package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/conformance"
	"github.com/select-service/select-service/test/procs"
)

const folder = "../../testdata/conformance"

// commandEnv names another server to play the recorded scenarios against, for
// example "python -m dynamo.select_service --port {port}".
const commandEnv = "SELECT_SERVICE_CMD"

// contracts are the folders of scenarios and the flag of the listener that each
// is played against.
var contracts = []struct {
	folder string
	flags  []string
}{
	{folder: "selection", flags: []string{"--port", "{port}"}},
	{folder: "rejection", flags: []string{"--port", "{port}"}},
	{folder: "slots", flags: []string{"--slots-port", "{port}", "--port", "0"}},
	{folder: "conductor", flags: []string{"--conductor-port", "{port}", "--port", "0"}},
}

// atOnce bounds the services that run at the same time: scenarios measure how
// long an answer takes.
const atOnce = 4

// TestScenarios plays every scenario against a service of its own.
func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the built service")
	}
	slots := make(chan struct{}, atOnce)
	for _, c := range contracts {
		t.Run(c.folder, func(t *testing.T) {
			for _, sc := range load(t, c.folder) {
				t.Run(sc.Name, func(t *testing.T) {
					if os.Getenv(commandEnv) != "" && sc.Decided != nil {
						t.Skip("decided, not recorded")
					}
					t.Parallel()
					slots <- struct{}{}
					t.Cleanup(func() { <-slots })
					conformance.Play(t, sc, host{c.flags})
				})
			}
		})
	}
}

// TestScenariosAreReadable proves that every scenario uses only what the player
// knows.
func TestScenariosAreReadable(t *testing.T) {
	names := map[string]bool{}
	for _, c := range contracts {
		for _, sc := range load(t, c.folder) {
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

func (h host) FreePort(tb testing.TB) int { return procs.FreePort(tb) }

func (h host) Start(tb testing.TB, env map[string]string, args []string) conformance.Server {
	tb.Helper()
	port := procs.FreePort(tb)
	command := strings.Fields(os.Getenv(commandEnv))
	if len(command) == 0 {
		command = append([]string{procs.Binary(tb)}, h.flags...)
	}
	for i, word := range command {
		command[i] = strings.ReplaceAll(word, "{port}", fmt.Sprint(port))
	}
	return procs.Start(tb, procs.Options{
		Command: append(command, args...), Env: env, Address: fmt.Sprintf("127.0.0.1:%d", port),
	})
}
