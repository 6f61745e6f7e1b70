package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// Server is a service under test.
type Server interface {
	// Address is host:port of the listener under test.
	Address() string
	// Wait waits for the process to end, but not longer than d.
	Wait(d time.Duration) (exitCode int, ended bool)
	// Output is what it has written so far.
	Output() string
	// Stop ends it.
	Stop()
}

// Host starts services and knows free ports.
type Host interface {
	// Start starts a service with the environment (name → value) and arguments
	// of a scenario; it does not wait for it to listen.
	Start(tb testing.TB, env map[string]string, args []string) Server
	// FreePort returns a port of 127.0.0.1 that nobody listens at.
	FreePort(tb testing.TB) int
}

// Options change how a scenario is played.
type Options struct {
	// Prefix goes in front of every path but that of the metrics, which have no
	// dialect.
	Prefix string
	// Check, if set, sees every answer that the scenario asks for, before it is
	// compared; an error fails the step. Several goroutines may call it at once.
	Check func(Exchange) error
}

// target puts the prefix in front of a path.
func (o *Options) target(path string) string {
	if path == "/metrics" {
		return path
	}
	return o.Prefix + path
}

// Play runs one scenario in a service of its own and fails tb at the first step
// that goes wrong.
func Play(tb testing.TB, sc *Scenario, host Host, options Options) {
	tb.Helper()
	p := newPlayer(tb, sc, host)
	p.options = options
	if sc.StartFails != nil {
		p.startFails(host)
		return
	}
	p.start(host)
	p.play()
}

// PlayOn runs one scenario against a service that is running already. Its env
// and args are not looked at.
func PlayOn(tb testing.TB, sc *Scenario, host Host, server Server) {
	tb.Helper()
	p := newPlayer(tb, sc, host)
	p.server, p.client = server, client{server.Address()}
	p.play()
}

// player is the state of one scenario that is being played. It belongs to the
// goroutine of its test, except for what request needs: places, numbers, vars,
// options and client are only read while requests run in other goroutines.
type player struct {
	tb      testing.TB
	sc      *Scenario
	options Options
	server  Server
	client  client

	publishers map[string]*publisher
	replays    map[string]*zmqtest.ReplayServer
	listeners  map[string]*zmqtest.Listener
	jobs       map[string]*job

	places  map[string]string // placeholder → endpoint or URL
	numbers map[string]string // placeholder → port
	vars    map[string]string // placeholder → saved value
	files   string            // folder of the scenario's files
}

func newPlayer(tb testing.TB, sc *Scenario, host Host) *player {
	tb.Helper()
	p := &player{
		tb: tb, sc: sc,
		publishers: map[string]*publisher{}, replays: map[string]*zmqtest.ReplayServer{},
		listeners: map[string]*zmqtest.Listener{}, jobs: map[string]*job{},
		places: map[string]string{}, numbers: map[string]string{}, vars: map[string]string{},
	}
	for _, name := range sc.names("pub", func(s *Step) json.RawMessage { return s.Publish }) {
		pub := zmqtest.NewPublisher(tb, "")
		tb.Cleanup(pub.Close)
		p.publishers[name] = &publisher{Publisher: pub}
		p.places["{pub:"+name+"}"] = pub.Endpoint
	}
	for _, name := range sc.names("replay", func(s *Step) json.RawMessage { return s.ReplayServer }) {
		replay := zmqtest.NewReplayServer(tb, "", true)
		tb.Cleanup(replay.Close)
		p.replays[name] = replay
		p.places["{replay:"+name+"}"] = replay.Endpoint
	}
	for name, peer := range sc.Peers {
		p.places["{peer:"+name+"}"] = peer.serve(tb)
	}
	for _, m := range portPlaceholder.FindAll(sc.text, -1) {
		if p.numbers[string(m)] == "" {
			p.numbers[string(m)] = strconv.Itoa(host.FreePort(tb))
		}
	}
	return p
}

var portPlaceholder = regexp.MustCompile(`\{port[2-9]\}`)

// names returns the names of the sockets of a kind that a scenario mentions, by
// placeholder or as the endpoint of a step.
func (s *Scenario) names(kind string, step func(*Step) json.RawMessage) []string {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`\{`+kind+`:([a-zA-Z0-9_]+)\}`).FindAllSubmatch(s.text, -1) {
		found[string(m[1])] = true
	}
	for i := range s.Steps {
		var of struct{ Endpoint string }
		if raw := step(&s.Steps[i]); raw != nil && json.Unmarshal(raw, &of) == nil {
			found[of.Endpoint] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// start starts the service and waits until it answers.
func (p *player) start(host Host) {
	p.tb.Helper()
	p.launch(host)
	p.tb.Cleanup(p.server.Stop)
	for deadline := time.Now().Add(patience); ; {
		if a, err := p.client.do(message{method: "GET", path: "/health"}, 2*time.Second); err == nil && a.status < 500 {
			return
		}
		if code, ended := p.server.Wait(10 * time.Millisecond); ended {
			p.tb.Fatalf("%s start: service ended with code %d: %s", p.sc.Name, code, tail(p.server.Output()))
		}
		if time.Now().After(deadline) {
			p.tb.Fatalf("%s start: no answer within %v: %s", p.sc.Name, patience, tail(p.server.Output()))
		}
	}
}

func (p *player) launch(host Host) {
	p.tb.Helper()
	p.files = p.tb.TempDir()
	for name, content := range p.sc.Files {
		if err := os.WriteFile(filepath.Join(p.files, name), []byte(p.fill(content)), 0o600); err != nil {
			p.tb.Fatal(err)
		}
	}
	env := make(map[string]string, len(p.sc.Env))
	for k, v := range p.sc.Env {
		env[k] = p.fillFiles(v)
	}
	args := make([]string, len(p.sc.Args))
	for i, a := range p.sc.Args {
		args[i] = p.fillFiles(a)
	}
	p.server = host.Start(p.tb, env, args)
	p.client = client{p.server.Address()}
}

// startFails makes sure that the service refuses to start and says why.
func (p *player) startFails(host Host) {
	p.tb.Helper()
	p.launch(host)
	defer p.server.Stop()
	code, ended := p.server.Wait(patience)
	switch {
	case !ended:
		p.tb.Errorf("%s: the service started (or hangs), want it to stop with an error", p.sc.Name)
		return
	case code == 0:
		p.tb.Errorf("%s: exit code 0, want another one", p.sc.Name)
	}
	for _, word := range p.sc.StartFails.Mentions {
		if out := p.server.Output(); !strings.Contains(out, word) {
			p.tb.Errorf("%s: output does not name %q: %s", p.sc.Name, word, tail(out))
		}
	}
}

// play runs the steps until one fails.
func (p *player) play() {
	p.tb.Helper()
	// A helper may end the test inside a step: say which one in any case.
	at := "before the first step"
	defer func() {
		if p.tb.Failed() {
			p.tb.Logf("%s failed at %s; the service wrote: %s", p.sc.Name, at, tail(p.server.Output()))
		}
	}()
	for i := range p.sc.Steps {
		at = fmt.Sprintf("step %d %s", i, p.sc.Steps[i].label())
		if faults := p.run(&p.sc.Steps[i]); len(faults) > 0 {
			p.tb.Errorf("%s %s: %s", p.sc.Name, at, strings.Join(faults, "; "))
			return
		}
	}
}

// fill puts endpoints, ports and saved values in place of their placeholders.
func (p *player) fill(s string) string {
	if !strings.Contains(s, "{") {
		return s
	}
	for _, places := range []map[string]string{p.places, p.numbers, p.vars} {
		for placeholder, x := range places {
			s = strings.ReplaceAll(s, placeholder, x)
		}
	}
	return s
}

var filePlaceholder = regexp.MustCompile(`\{file:([^}]+)\}`)

func (p *player) fillFiles(s string) string {
	return filePlaceholder.ReplaceAllStringFunc(p.fill(s), func(m string) string {
		return filepath.Join(p.files, filePlaceholder.FindStringSubmatch(m)[1])
	})
}

// fillText fills every string of a JSON document.
func (p *player) fillText(text json.RawMessage) (json.RawMessage, error) {
	v, err := parse(text)
	if err != nil {
		return nil, err
	}
	return json.Marshal(mapStrings(v, p.fill))
}

// unfill puts the placeholders back into an answer.
func (p *player) unfill(s string) string {
	for placeholder, x := range p.places {
		s = strings.ReplaceAll(s, x, placeholder)
	}
	for placeholder, port := range p.numbers {
		s = regexp.MustCompile(`:`+port+`\b`).ReplaceAllLiteralString(s, ":"+placeholder)
	}
	return s
}

// mapStrings applies f to every string of a value, keys included.
func mapStrings(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = mapStrings(x, f)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[f(k)] = mapStrings(x, f)
		}
		return out
	}
	return v
}

// tail is the end of a service's output, where the reason for its end is.
func tail(output string) string {
	output = strings.TrimSpace(output)
	if n := len(output); n > 600 {
		output = "…" + output[n-600:]
	}
	if output == "" {
		return "(nothing)"
	}
	return output
}
