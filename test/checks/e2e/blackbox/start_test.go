package blackbox_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// runToEnd runs the program with arguments until it ends by itself.
func runToEnd(t *testing.T, env map[string]string, args ...string) (code int, output string) {
	t.Helper()
	p := e2e.Start(t, e2e.Options{Command: append([]string{e2e.Binary(t)}, args...), Env: env})
	code, ended := p.Wait(e2e.Patience)
	if !ended {
		t.Fatalf("select-service %v still runs after %v: %s", args, e2e.Patience, p.Output())
	}
	return code, p.Output()
}

// TestPortTaken proves that a taken port ends the start with an error that
// names the address.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	path := e2e.Binary(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, listen := range []string{"127.0.0.1", "0.0.0.0"} {
		p := e2e.Start(t, e2e.Options{Command: []string{path, "--listen", listen, "--port", port}})
		code, ended := p.Wait(e2e.Patience)
		if !ended || code == 0 {
			t.Errorf("on the taken port of %s: ended %v, exit code %d", listen, ended, code)
		}
		if address := net.JoinHostPort(listen, port); !strings.Contains(p.Output(), address) {
			t.Errorf("message does not name %s: %s", address, p.Output())
		}
	}
}

// TestBadConfiguration proves that a wrong configuration is refused as a whole:
// exit status 2, and every bad key in one message.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bad.yaml")
	content := "server:\n  prot: 1\nrouter:\n  host_cache_hit_weight: 2\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"DYN_ROUTER_TEMPERATURE": "-1", "DYN_USE_KV_EVENTS": "perhaps", "DYN_ROUTER_QUEUE_THRESHOLD": "NaN",
		"DYN_ROUTER_POLICY_CONFIG": "/does/not/exist.yaml",
	}
	args := []string{
		"--config", file, "--port", "70000", "--threads", "0", "--no-such-flag",
		"--replica-sync-peers", "tcp://127.0.0.1:5000",
	}
	names := []string{
		"server.prot", "host_cache_hit_weight", "DYN_ROUTER_TEMPERATURE", "DYN_USE_KV_EVENTS", "DYN_ROUTER_QUEUE_THRESHOLD",
		"DYN_ROUTER_POLICY_CONFIG", "--port", "--threads", "--no-such-flag", "--replica-sync-peers requires --replica-sync-port",
	}
	for _, args := range [][]string{args, append(args, "--check-config")} {
		code, out := runToEnd(t, env, args...)
		if code != 2 {
			t.Errorf("%v: exit status %d, want 2", args, code)
		}
		for _, name := range names {
			if !strings.Contains(out, name) {
				t.Errorf("%v: message does not name %s:\n%s", args, name, out)
			}
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		want string // regular expression
	}{
		"version":  {[]string{"--version"}, `^select-service \S+\n$`},
		"help":     {[]string{"--help"}, `(?s)--port PORT.*--config FILE`},
		"check":    {[]string{"--check-config", "--port", "0"}, `valid`},
		"slots":    {[]string{"slots", "--version"}, `^select-service \S+\n$`},
		"its help": {[]string{"slots", "--help"}, `(?s)--port PORT.*default 8091.*--replica-sync-bind.*--replica-sync-advertise.*--replica-sync-peers`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, out := runToEnd(t, nil, tc.args...)
			if code != 0 || !regexp.MustCompile(tc.want).MatchString(out) {
				t.Errorf("%v: exit status %d, output %q, want 0 and %s", tc.args, code, out, tc.want)
			}
		})
	}
}

// TestPrintConfig proves that the printed configuration is the effective one:
// given back as a file, without the flags and variables, it prints the same.
func TestPrintConfig(t *testing.T) {
	t.Parallel()
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	classes := "default_policy_family: f\nuncached_isl_buckets: [{min_tokens: 0, bucket: s}]\n" +
		"policy_classes:\n  - {name: c, policy_family: f, cache_bucket: s, quantum: 1, queue_policy: wspt}\n"
	if err := os.WriteFile(policy, []byte(classes), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		env  map[string]string
		args []string
	}{
		"defaults": {},
		"changed": {
			env:  map[string]string{"DYN_ROUTER_TEMPERATURE": "0.25", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT": "0", "DYN_USE_KV_EVENTS": "off"},
			args: []string{"--port", "0", "--listen", "::1", "--threads", "7", "--log-format", "console", "--router-queue-threshold", "1.5"},
		},
		"replicas": {args: []string{
			"--indexer-peers", "http://a:8092,http://b:8092", "--replica-sync-port", "5001", "--replica-sync-peers", "tcp://a:5001,tcp://b:5001",
		}},
		"policy": {env: map[string]string{"DYN_ROUTER_POLICY_CONFIG": policy}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, printed := runToEnd(t, tc.env, append(tc.args, "--print-config")...)
			if code != 0 {
				t.Fatalf("exit status %d: %s", code, printed)
			}
			file := filepath.Join(t.TempDir(), "printed.yaml")
			if err := os.WriteFile(file, []byte(printed), 0o600); err != nil {
				t.Fatal(err)
			}
			code, again := runToEnd(t, nil, "--config", file, "--print-config")
			if code != 0 || again != printed {
				t.Errorf("exit status %d, printed\n%s\nfrom\n%s", code, again, printed)
			}
		})
	}
}

// TestPortZero proves that port 0 takes a free port, which the log names.
func TestPortZero(t *testing.T) {
	t.Parallel()
	p := e2e.Start(t, e2e.Options{Command: []string{e2e.Binary(t), "--port", "0", "--listen", "127.0.0.1"}})
	address := regexp.MustCompile(`127\.0\.0\.1:[1-9]\d+`)
	e2e.Eventually(t, "a logged address answers", func() error {
		found := address.FindString(p.Output())
		if found == "" {
			return fmt.Errorf("no address in %q", p.Output())
		}
		resp, err := http.Get("http://" + found + "/health")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
}
