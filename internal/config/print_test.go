package config_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/pending"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestHelp proves what --help and --help-all print, and that --help fits a screen.
func TestHelp(t *testing.T) {
	for name, conf := range map[string]config.Config{"": config.Default(), "_slots": config.DefaultSlots()} {
		var short, all bytes.Buffer
		if err := errors.Join(conf.WriteHelp(&short), conf.WriteHelpAll(&all)); err != nil {
			t.Fatal(err)
		}
		golden(t, "help"+name+".golden", short.String())
		golden(t, "help_all"+name+".golden", all.String())
		if n := strings.Count(short.String(), "\n"); n > 24 {
			t.Errorf("help%s has %d lines, more than a screen", name, n)
		}
		for line := range strings.Lines(short.String()) {
			if len(line) > 80+len("\n") {
				t.Errorf("help%s: more than 80 columns: %s", name, line)
			}
		}
	}
}

// TestReference proves that docs/reference/configuration.md has every option as it is.
func TestReference(t *testing.T) {
	sameFile(t, "../../docs/reference/configuration.md", config.Reference())
}

func printed(t *testing.T, conf config.Config) string {
	t.Helper()
	var out bytes.Buffer
	if err := conf.WriteYAML(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestPrintDefault(t *testing.T) {
	golden(t, "default.golden.yaml", printed(t, config.Default()))
}

// TestRules: replicas that decide by other weights, thresholds, queues or policies have other rules;
// names of files, their comments and the order in them make none, nor does anything else.
func TestRules(t *testing.T) {
	rules := func(policy string, args ...string) string {
		t.Helper()
		if policy != "" {
			path := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--router-policy-config", path)
		}
		c, err := config.Load(args, func(string) string { return "" }, os.ReadFile)
		if err != nil {
			t.Fatal(err)
		}
		return c.Rules()
	}
	const file = "worker_selection:\n  aggregated: a\n  instances:\n  - {name: a, type: predicted-ttft}\n"
	seen := map[string]string{rules(""): "the default"}
	for name, got := range map[string]string{
		"weight":     rules("", "--router-temperature", "0.5"),
		"threshold":  rules("", "--active-decode-blocks-threshold", "0.9"),
		"queue":      rules("", "--router-queue-threshold", "2"),
		"file":       rules(file),
		"parameters": rules(strings.Replace(file, "predicted-ttft}", "predicted-ttft, parameters: {hold_seconds: 1}}", 1)),
		"contract":   rules("", "--contract", "1.6"),
	} {
		if other, has := seen[got]; has {
			t.Errorf("%s has the rules of %s", name, other)
		}
		seen[got] = name
	}
	if rules(file) != rules("# a comment\n"+file) {
		t.Error("a comment makes other rules")
	}
	if rules("") != rules("", "--port", "1", "--log-level", "debug") {
		t.Error("a port makes other rules")
	}
}

// TestPrintReadsBack proves that --print-config > file loses nothing.
func TestPrintReadsBack(t *testing.T) {
	want := config.Default()
	want.Server = config.Server{
		Listen: []string{"::"}, Port: 0, SlotsPort: 8091, ConductorPort: 13333, Contract: contract.V16, AdvertiseURL: "http://h:1/x", UI: "/x/y",
	}
	want.KVEvents = config.KVEvents{Threads: 1, ApproximateTTL: time.Millisecond, ApproximatePolicy: config.PolicyLRU}
	want.Router.OverlapCredit, want.Router.ActiveRequests = 1.5, 0.5
	want.Queue.Order = admission.WSPT
	want.Selections = config.Selections{
		SessionTTL: time.Second, Pending: pending.Limits{TTL: time.Minute, Entries: 3, Bytes: math.MaxInt},
		DecodeBusy: new(0.0), PrefillBusy: new(math.MaxFloat64),
	}
	want.Reservations.Lifetime = time.Second
	want.Router.Temperature = math.MaxFloat64
	want.Router.CreditDecay = math.SmallestNonzeroFloat64
	want.Queue.Threshold = new(0.1)
	want.Queue.OverlapRefreshAfter = 1234567890123 * time.Millisecond
	want.Overload = config.Overload{
		Thresholds: overload.Thresholds{DecodeBlocks: new(0.0), PrefillTokens: new(uint64(math.MaxUint64)), PrefillFraction: new(math.MaxFloat64)},
		RetryAfter: new(time.Duration(0)),
	}
	want.Metrics.DynamoAliases = true
	want.Replicas = config.Replicas{
		IndexerPeers: []string{"http://a:1/x", "http://b"}, RecoveryDeadline: 90*time.Minute + time.Millisecond,
		SyncPort: 9, SyncBind: "tcp://*:9", SyncAdvertise: "tcp://d:9", SyncPeers: []string{"tcp://c:1"},
	}
	equal(t, fromFile(printed(t, want)).mustLoad(t), want)
}

// TestShippedFile proves that the example has every option as it is, holds the defaults and is read without a warning.
func TestShippedFile(t *testing.T) {
	const path = "../../configs/select-service.yaml"
	sameFile(t, path, config.ShippedFile())
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	conf := fromFile(string(content)).mustLoad(t)
	equal(t, conf, config.Default())
	if warnings := conf.Warnings(); len(warnings) > 0 {
		t.Errorf("configs/select-service.yaml warns %q", warnings)
	}
}

// FuzzFile proves that no file makes the loader panic, and that the accepted configuration
// survives being printed and read.
func FuzzFile(f *testing.F) {
	f.Add("kv_events: {enabled: off, threads: 2}\nrouter: {temperature: 0.5, track_prefill_tokens: no}")
	f.Add("server: {port: 0, listen: '[::1]'}\nlog: ~")
	f.Add("queue: {threshold: 1e300, overlap_refresh_after_secs: 0.00001}")
	f.Add("overload: {active_decode_blocks_threshold: 1e-9, active_prefill_tokens_threshold: 18446744073709551615, retry_after_secs: 9}")
	f.Add("replicas: {indexer_peers: 'http://a,http://b', sync_port: 1, sync_peers: [tcp://a:1]}")
	f.Add("replicas: {sync_bind: 'tcp://[::]:1', sync_advertise: ipc://x, recovery_deadline: 1h1ns}")
	f.Add("a: &a [*a]\n<<: *a")
	f.Fuzz(func(t *testing.T, content string) {
		conf, err := fromFile(content).load()
		if err != nil {
			return
		}
		again, err := fromFile(printed(t, conf)).load()
		if err != nil {
			t.Fatalf("printed configuration is refused: %v", err)
		}
		if diff := cmp.Diff(conf, again, cmpopts.IgnoreUnexported(config.Config{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("printed configuration differs (-want +got):\n%s", diff)
		}
	})
}

// TestClosedConfiguration: the file of docs/run/security.md that closes the service is
// one that the service takes, without a warning.
func TestClosedConfiguration(t *testing.T) {
	page, err := os.ReadFile("../../docs/run/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, found := strings.Cut(text, "```")
	if !found {
		t.Fatal("docs/run/security.md has no configuration")
	}
	conf := fromFile(text).mustLoad(t)
	if warnings := conf.Warnings(); len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	if conf.TLS.Cert == "" || conf.Access.TokensFile == "" || conf.Limits.MaxMemory == 0 {
		t.Errorf("configuration %+v", conf)
	}
}

// TestNoCredentials: whatever option has a URL with credentials, from whatever source, neither the printed
// configuration nor a fault shows them. NATS takes a token in the place of a name.
func TestNoCredentials(t *testing.T) {
	length.Sequential(t)
	const secret, token = "SECRET", "TOKEN"
	for _, servers := range []string{"nats://user:SECRET@h:4222", "tls://TOKEN@h", "nats://h:1,nats://u:SEC%40SECRET@[::1]:2/", "nats://:SECRET@h"} {
		for from, s := range map[string]setup{
			"flag":     {args: []string{"--fleet", servers}},
			"variable": {env: map[string]string{"SELECT_SERVICE_FLEET": servers}},
		} {
			conf := s.mustLoad(t)
			if got := printed(t, conf); strings.Contains(got, secret) || strings.Contains(got, token) || !strings.Contains(got, "://xxxxx@") {
				t.Errorf("%s %s: %s", from, servers, got)
			}
			if joined := strings.Join(conf.Fleet.Servers, ","); joined != servers {
				t.Errorf("%s: printing has changed the servers to %s", from, joined)
			}
		}
	}
	var help bytes.Buffer
	if err := config.Default().WriteHelpAll(&help); err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^  --([a-z-]+)`).FindAllStringSubmatch(help.String(), -1)
	if len(flags) < 100 {
		t.Fatalf("there are %d flags", len(flags))
	}
	for _, match := range flags {
		flag := match[1]
		if flag == "gateway-model" { // names, where an @ begins a tenant
			continue
		}
		for _, value := range []string{"http://u:SECRET@h:1", "http://TOKEN@h:99999999", "nats://u:SECRET%zz@h", "vllm=http://u:SECRET@h:1", "tcp://u:SECRET@h:x", "https://u:SEC/SECRET@h"} {
			conf, err := setup{args: []string{"--" + flag, value}}.load()
			var text string
			if err != nil {
				text = err.Error()
			} else {
				text = printed(t, conf)
			}
			if strings.Contains(text, secret) || strings.Contains(text, token) {
				t.Errorf("--%s %s: %s", flag, value, text)
			}
		}
	}
}
