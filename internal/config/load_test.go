package config_test

import (
	"errors"
	"flag"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files and docs/reference/configuration.md")

// setup is one start of the program. Files are found by their name.
type setup struct {
	args  []string
	env   map[string]string
	files map[string]string
}

func (s setup) load() (config.Config, error) {
	getenv := func(name string) string { return s.env[name] }
	readFile := func(name string) ([]byte, error) {
		content, ok := s.files[name]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		return []byte(content), nil
	}
	return config.Load(s.args, getenv, readFile)
}

func (s setup) mustLoad(t *testing.T) config.Config {
	t.Helper()
	conf, err := s.load()
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return conf
}

func equal(t *testing.T, got, want config.Config) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(config.Config{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	sameFile(t, filepath.Join("testdata", name), got)
}

// sameFile proves that a file holds got; with -rewrite it writes the file.
func sameFile(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

const policy = `default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: s}]
policy_classes:
  - {name: c, policy_family: f, cache_bucket: s, quantum: 1, prefill_busy_threshold: 0}
`

// settings has one good and some bad texts for every setting in every source.
var settings = []struct {
	flag, key string
	env       []string
	text      string
	want      func(*config.Config)
	bad       []string
}{
	{
		flag: "listen", key: "server.listen", env: []string{"SELECT_SERVICE_LISTEN"},
		text: "127.0.0.1", want: func(c *config.Config) { c.Server.Listen = []string{"127.0.0.1"} },
		bad: []string{"127.0.0.1:80", "http://x", "a b", "[::1", "1::2::3", "hôte"},
	},
	{
		flag: "listen", key: "server.listen", env: []string{"SELECT_SERVICE_LISTEN"},
		text: "[::1]", want: func(c *config.Config) { c.Server.Listen = []string{"::1"} },
	},
	{
		flag: "listen", key: "server.listen", env: []string{"SELECT_SERVICE_LISTEN"},
		text: "::1,unix:///run/a.sock,unix:///run/b.sock",
		want: func(c *config.Config) { c.Server.Listen = []string{"::1", "unix:///run/a.sock", "unix:///run/b.sock"} },
		bad:  []string{"unix://a.sock", "unix:///", "unix:///a/../b", "unix:///" + strings.Repeat("a", 107), "::1,::2"},
	},
	{
		flag: "port", key: "server.port", env: []string{"SELECT_SERVICE_PORT"},
		text: "0", want: func(c *config.Config) { c.Server.Port = 0 },
		bad: []string{"-1", "65536", "99999999999999999999", "http", "80.5", " 80", "0x50", "udp://1.2.3.4:5"},
	},
	{
		flag: "slots-port", key: "server.slots_port", env: []string{"SELECT_SERVICE_SLOTS_PORT"},
		text: "8091", want: func(c *config.Config) { c.Server.SlotsPort = 8091 },
		bad: []string{"-1", "65536", "off"},
	},
	{
		flag: "conductor-port", key: "server.conductor_port", env: []string{"SELECT_SERVICE_CONDUCTOR_PORT"},
		text: "13333", want: func(c *config.Config) { c.Server.ConductorPort = 13333 },
		bad: []string{"-1", "65536", "on"},
	},
	{
		flag: "ui", key: "server.ui", env: []string{"SELECT_SERVICE_UI"},
		text: "off", want: func(c *config.Config) { c.Server.UI = "" },
		bad: []string{"no-path", "a/b", "/a?b", "/a/../b", "//a"},
	},
	{
		flag: "ui", key: "server.ui", env: []string{"SELECT_SERVICE_UI"},
		text: "/ops/page/", want: func(c *config.Config) { c.Server.UI = "/ops/page" },
	},
	{
		flag: "advertise-url", key: "server.advertise_url", env: []string{"SELECT_SERVICE_ADVERTISE_URL"},
		text: "https://h:8092/x/", want: func(c *config.Config) { c.Server.AdvertiseURL = "https://h:8092/x" },
		bad: []string{"h:8092", "tcp://h:1", "http://h?q"},
	},
	{
		flag: "contract", key: "server.contract", env: []string{"SELECT_SERVICE_CONTRACT"},
		text: "1.6", want: func(c *config.Config) { c.Server.Contract = contract.V16 },
		bad: []string{"1.4", "v1.6", "1.60", "latest"},
	},
	{
		flag: "workers-file", key: "workers.file", env: []string{"SELECT_SERVICE_WORKERS_FILE"},
		text: "workers.yaml", want: func(c *config.Config) { c.Workers.File = "workers.yaml" },
	},
	{
		flag: "use-kv-events", key: "kv_events.enabled", env: []string{"DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"},
		text: "OFF", want: func(c *config.Config) { c.KVEvents.Enabled = false },
		bad: []string{"maybe", "2", " true"},
	},
	{
		flag: "threads", key: "kv_events.threads", env: []string{"SELECT_SERVICE_THREADS", "DYN_ROUTER_EVENT_THREADS"},
		text: "7", want: func(c *config.Config) { c.KVEvents.Threads = 7 },
		bad: []string{"0", "-3", "1025", "four", "1.5"},
	},
	{
		flag: "router-ttl-secs", key: "kv_events.approximate_ttl_secs", env: []string{"DYN_ROUTER_TTL_SECS"},
		text: "0.5", want: func(c *config.Config) { c.KVEvents.ApproximateTTL = 500 * time.Millisecond },
		bad: []string{"nan", "inf", "2 m", "-1", "-0.001", "2592000.001", "1e300"},
	},
	{
		flag: "router-ttl-secs", key: "kv_events.approximate_ttl_secs", env: []string{"DYN_ROUTER_TTL_SECS"},
		text: "2592000", want: func(c *config.Config) { c.KVEvents.ApproximateTTL = 30 * 24 * time.Hour },
	},
	{
		flag: "router-ttl-secs", key: "kv_events.approximate_ttl_secs", env: []string{"DYN_ROUTER_TTL_SECS"},
		text: "0", want: func(c *config.Config) { c.KVEvents.ApproximateTTL = 0 },
	},
	{
		flag: "router-predicted-ttl-secs", key: "kv_events.predicted_ttl_secs", env: []string{"DYN_ROUTER_PREDICTED_TTL_SECS"},
		text: "0.25", want: func(c *config.Config) { c.KVEvents.PredictedTTL = new(250 * time.Millisecond) },
		bad: []string{"nan", "inf", "721h", "-1", "2592000.001"},
	},
	{
		flag: "router-predicted-ttl-secs", key: "kv_events.predicted_ttl_secs", env: []string{"DYN_ROUTER_PREDICTED_TTL_SECS"},
		text: "0", want: func(c *config.Config) { c.KVEvents.PredictedTTL = new(time.Duration(0)) },
	},
	{
		flag: "router-decode-active-request-weight", key: "router.decode_active_request_weight",
		env:  []string{"DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT"},
		text: "0.25", want: func(c *config.Config) { c.Router.ActiveRequests = 0.25 },
		bad: []string{"-1", "nan", "inf", "x"},
	},
	{
		flag: "router-queue-policy", key: "queue.order", env: []string{"DYN_ROUTER_QUEUE_POLICY"},
		text: "lcfs", want: func(c *config.Config) { c.Queue.Order = admission.LCFS },
		bad: []string{"FIFO", "edf", "fcfs "},
	},
	{
		flag: "session-affinity-ttl-secs", key: "selections.session_affinity_ttl_secs",
		env:  []string{"SELECT_SERVICE_SESSION_AFFINITY_TTL_SECS"},
		text: "31536000", want: func(c *config.Config) { c.Selections.SessionTTL = 31536000 * time.Second },
		bad: []string{"-1", "31536001", "0.5", "1500ms", "none"},
	},
	{
		flag: "session-groups", key: "selections.session_groups", env: []string{"SELECT_SERVICE_SESSION_GROUPS"},
		text: "true", want: func(c *config.Config) { c.Selections.Groups = new(true) },
		bad: []string{"2", "perhaps"},
	},
	{
		flag: "selection-cache-ttl-secs", key: "selections.cache_ttl_secs", env: []string{"SELECT_SERVICE_SELECTION_CACHE_TTL_SECS"},
		text: "0.5", want: func(c *config.Config) { c.Selections.Pending.TTL = 500 * time.Millisecond },
		bad: []string{"-1", "2592000.5", "5q", "nan", "inf"},
	},
	{
		flag: "selection-cache-max-entries", key: "selections.cache_max_entries", env: []string{"SELECT_SERVICE_SELECTION_CACHE_MAX_ENTRIES"},
		text: "0", want: func(c *config.Config) { c.Selections.Pending.Entries = 0 },
		bad: []string{"-1", "0.5", "2147483648", "many"},
	},
	{
		flag: "decisions-bytes", key: "selections.decisions_bytes", env: []string{"SELECT_SERVICE_DECISIONS_BYTES"},
		text: "0", want: func(c *config.Config) { c.Selections.DecisionBytes = 0 },
		bad: []string{"-1", "1MiB"},
	},
	{
		flag: "selection-cache-max-bytes", key: "selections.cache_max_bytes", env: []string{"SELECT_SERVICE_SELECTION_CACHE_MAX_BYTES"},
		text: "0", want: func(c *config.Config) { c.Selections.Pending.Bytes = 0 },
		bad: []string{"-1", "1MiB"},
	},
	{
		flag: "max-memory", key: "limits.max_memory", env: []string{"SELECT_SERVICE_MAX_MEMORY"},
		text: "512MiB", want: func(c *config.Config) { c.Limits.MaxMemory = 512 << 20 },
		bad: []string{"-1", "1.5GiB", "67108863", "63MiB", "512MB", "much", "MiB", "8589934592GiB"},
	},
	{
		flag: "max-workers", key: "limits.max_workers", env: []string{"SELECT_SERVICE_MAX_WORKERS"},
		text: "77", want: func(c *config.Config) { c.Limits.Catalog.Workers = 77 },
		bad: []string{"0", "-1", "2147483648", "x"},
	},
	{
		flag: "max-ranks", key: "limits.max_ranks", env: []string{"SELECT_SERVICE_MAX_RANKS"},
		text: "77", want: func(c *config.Config) { c.Limits.Catalog.Ranks = 77 },
		bad: []string{"0", "-1", "2147483648", "x"},
	},
	{
		flag: "max-models", key: "limits.max_models", env: []string{"SELECT_SERVICE_MAX_MODELS"},
		text: "77", want: func(c *config.Config) { c.Limits.Catalog.Scopes = 77 },
		bad: []string{"0", "-1", "2147483648", "x"},
	},
	{
		flag: "max-reservations", key: "limits.max_reservations", env: []string{"SELECT_SERVICE_MAX_RESERVATIONS"},
		text: "77", want: func(c *config.Config) { c.Limits.MaxReservations = 77 },
		bad: []string{"0", "-1", "2147483648", "x"},
	},
	{
		flag: "decode-busy-threshold", key: "selections.decode_busy_threshold",
		env:  []string{"DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"},
		text: "0.9", want: func(c *config.Config) { c.Selections.DecodeBusy = new(0.9) },
		bad: []string{"-1", "nan", "inf"},
	},
	{
		flag: "prefill-busy-threshold", key: "selections.prefill_busy_threshold",
		env:  []string{"DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD"},
		text: "2", want: func(c *config.Config) { c.Selections.PrefillBusy = new(2.0) },
		bad: []string{"-1", "nan", "inf"},
	},
	{
		flag: "active-request-expiry-secs", key: "reservations.lifetime_secs", env: []string{"DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS"},
		text: "600", want: func(c *config.Config) { c.Reservations.Lifetime = 10 * time.Minute },
		bad: []string{"0", "-1", "1.5", "100ms"},
	},
	{
		flag: "router-kv-overlap-score-credit", key: "router.kv_overlap_score_credit",
		env:  []string{"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT"},
		text: "0.5", want: func(c *config.Config) { c.Router.OverlapCredit = 0.5 },
		bad: []string{"-0.1", "NaN", "inf", "x", "0x1p-2", "1_0"}, // above 1: TestConflicts
	},
	{
		flag: "router-kv-overlap-score-credit-decay", key: "router.kv_overlap_score_credit_decay",
		env:  []string{"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY"},
		text: "2.5", want: func(c *config.Config) { c.Router.CreditDecay = 2.5 },
		bad: []string{"-1", "nan", "Infinity", "1e999"},
	},
	{
		flag: "router-prefill-load-scale", key: "router.prefill_load_scale", env: []string{"DYN_ROUTER_PREFILL_LOAD_SCALE"},
		text: "3", want: func(c *config.Config) { c.Router.PrefillScale = 3 },
		bad: []string{"-0.5", "-inf", ".nan"},
	},
	{
		flag: "router-host-cache-hit-weight", key: "router.host_cache_hit_weight", env: []string{"DYN_ROUTER_HOST_CACHE_HIT_WEIGHT"},
		text: "1", want: func(c *config.Config) { c.Router.Host = 1 },
		bad: []string{"1.01", "-1", "nan"},
	},
	{
		flag: "router-disk-cache-hit-weight", key: "router.disk_cache_hit_weight", env: []string{"DYN_ROUTER_DISK_CACHE_HIT_WEIGHT"},
		text: "0", want: func(c *config.Config) { c.Router.Disk = 0 },
		bad: []string{"2", "-1", "inf"},
	},
	{
		flag: "router-temperature", key: "router.temperature", env: []string{"DYN_ROUTER_TEMPERATURE"},
		text: "1e-3", want: func(c *config.Config) { c.Router.Temperature = 0.001 },
		bad: []string{"-1", "hot", "+Inf"},
	},
	{
		flag: "router-track-prefill-tokens", key: "router.track_prefill_tokens", env: []string{"DYN_ROUTER_TRACK_PREFILL_TOKENS"},
		text: "No", want: func(c *config.Config) { c.Router.TrackPrefill = false },
		bad: []string{"none", "y"},
	},
	{
		flag: "router-queue-threshold", key: "queue.threshold", env: []string{"DYN_ROUTER_QUEUE_THRESHOLD"},
		text: "16", want: func(c *config.Config) { c.Queue.Threshold = new(16.0) },
		bad: []string{"-1", "nan", "inf", "off"},
	},
	{
		flag: "router-policy-config", key: "queue.policy_config", env: []string{"DYN_ROUTER_POLICY_CONFIG"},
		text: "policy.yaml", want: func(c *config.Config) { c.Queue.PolicyFile = "policy.yaml" },
		bad: []string{"absent.yaml", "broken.yaml"},
	},
	{
		flag: "router-worker-selection-policy", key: "router.worker_selection_policy", env: []string{"DYN_ROUTER_WORKER_SELECTION_POLICY"},
		text: "default", want: func(c *config.Config) { c.WorkerSelection.Name = "default" },
	},
	{
		flag: "router-overlap-refresh-after-secs", key: "queue.overlap_refresh_after_secs",
		env:  []string{"DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS"},
		text: "0.25", want: func(c *config.Config) { c.Queue.OverlapRefreshAfter = 250 * time.Millisecond },
		bad: []string{"nan", "inf", "soon"},
	},
	{
		flag: "router-overlap-refresh-after-secs", key: "queue.overlap_refresh_after_secs",
		env:  []string{"DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS"},
		text: "-1", want: func(c *config.Config) { c.Queue.OverlapRefreshAfter = 0 },
	},
	{
		flag: "active-decode-blocks-threshold", key: "overload.active_decode_blocks_threshold", env: []string{"DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD"},
		text: "0.85", want: func(c *config.Config) { c.Overload.Thresholds.DecodeBlocks = new(0.85) },
		bad: []string{"1.01", "-0.1", "nan", "inf", "off", "0x1"},
	},
	{
		flag: "active-decode-blocks-threshold", key: "overload.active_decode_blocks_threshold", env: []string{"DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD"},
		text: "1.0", want: func(c *config.Config) { c.Overload.Thresholds.DecodeBlocks = new(1.0) },
	},
	{
		flag: "active-prefill-tokens-threshold", key: "overload.active_prefill_tokens_threshold", env: []string{"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD"},
		text: "18446744073709551615", want: func(c *config.Config) { c.Overload.Thresholds.PrefillTokens = new(uint64(math.MaxUint64)) },
		bad: []string{"-1", "1.5", "18446744073709551616", "-99999999999999999999", "1e3", "many", " 1"},
	},
	{
		flag: "active-prefill-tokens-threshold", key: "overload.active_prefill_tokens_threshold", env: []string{"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD"},
		text: "0", want: func(c *config.Config) { c.Overload.Thresholds.PrefillTokens = new(uint64(0)) },
	},
	{
		flag: "active-prefill-tokens-threshold-frac", key: "overload.active_prefill_tokens_threshold_frac",
		env:  []string{"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC"},
		text: "1.5", want: func(c *config.Config) { c.Overload.Thresholds.PrefillFraction = new(1.5) },
		bad: []string{"-1", "-1e-9", "nan", "inf", "1e999", "x"},
	},
	{
		flag: "overload-retry-after-secs", key: "overload.retry_after_secs",
		env:  []string{"SELECT_SERVICE_OVERLOAD_RETRY_AFTER_SECS", "DYN_EPP_SHED_RETRY_AFTER_SECS"},
		text: "86400", want: func(c *config.Config) { c.Overload.RetryAfter = new(24 * time.Hour) },
		bad: []string{"-1", "86401", "1.5", "25h", "9999999999999999999999"},
	},
	{
		flag: "metrics-dynamo-aliases", key: "metrics.dynamo_aliases", env: []string{"SELECT_SERVICE_METRICS_DYNAMO_ALIASES"},
		text: "On", want: func(c *config.Config) { c.Metrics.DynamoAliases = true },
		bad: []string{"maybe", "none"},
	},
	{
		flag: "indexer-peers", key: "replicas.indexer_peers", env: []string{"SELECT_SERVICE_INDEXER_PEERS"},
		text: "http://a:8092/, https://b ,,http://a:8092",
		want: func(c *config.Config) { c.Replicas.IndexerPeers = []string{"http://a:8092", "https://b"} },
		bad:  []string{"a:8092", "tcp://a:1", "http://", "http://a:99999", "http://a?x=1", "http://u@a", "http://a:b", "http://\x7f"},
	},
	{
		flag: "replica-sync-port", key: "replicas.sync_port", env: []string{"SELECT_SERVICE_REPLICA_SYNC_PORT"},
		text: "9092", want: func(c *config.Config) { c.Replicas.SyncPort = 9092 },
		bad: []string{"0", "65536", "-1", "x"},
	},
	{
		flag: "replica-sync-bind", key: "replicas.sync_bind", env: []string{"SELECT_SERVICE_REPLICA_SYNC_BIND"},
		text: "tcp://*:9092", want: func(c *config.Config) { c.Replicas.SyncBind = "tcp://*:9092" },
		bad: []string{"9092", "tcp://*", "tcp://*:0", "http://*:1"},
	},
	{
		flag: "recovery-deadline", key: "replicas.recovery_deadline", env: []string{"SELECT_SERVICE_RECOVERY_DEADLINE"},
		text: "1m30s", want: func(c *config.Config) { c.Replicas.RecoveryDeadline = 90 * time.Second },
		bad: []string{"0", "-1s", "soon", "nan", "1e300", "721h"},
	},
	{
		flag: "log-level", key: "log.level", env: []string{"SELECT_SERVICE_LOG_LEVEL"},
		text: "debug", want: func(c *config.Config) { c.Log.Level = zerolog.DebugLevel },
		bad: []string{"loud", "INFO"},
	},
	{
		flag: "log-format", key: "log.format", env: []string{"SELECT_SERVICE_LOG_FORMAT"},
		text: "console", want: func(c *config.Config) { c.Log.Format = "console" },
		bad: []string{"text"},
	},
}

// sources gives the setups in which one setting has the text, one per source
// and name, by the name that a fault must mention.
func sources(flag, key string, env []string, text string) map[string]setup {
	files := map[string]string{"policy.yaml": policy, "broken.yaml": "policy_classes: 7"}
	withFile := map[string]string{"c.yaml": fileWith(key, text)}
	for name, content := range files {
		withFile[name] = content
	}
	setups := map[string]setup{
		"--" + flag: {args: []string{"--" + flag + "=" + text}, files: files},
		key:         {args: []string{"--config", "c.yaml"}, files: withFile},
	}
	for _, name := range env {
		setups[name] = setup{env: map[string]string{name: text}, files: files}
	}
	return setups
}

func fileWith(key, text string) string {
	group, name, _ := strings.Cut(key, ".")
	return group + ":\n  " + name + ": '" + text + "'\n"
}

// TestEverySource proves that each setting is read from each of its sources.
func TestEverySource(t *testing.T) {
	for _, s := range settings {
		for name, start := range sources(s.flag, s.key, s.env, s.text) {
			t.Run(name+"="+s.text, func(t *testing.T) {
				got := start.mustLoad(t)
				got.Queue.File, got.WorkerSelection.Policies = nil, nil // TestPolicyFile and TestPolicyFileSections look at them
				want := config.Default()
				s.want(&want)
				equal(t, got, want)
			})
		}
	}
}

// TestBadValues proves that each bad text is refused from each source, by name,
// and that a stronger good value does not hide it.
func TestBadValues(t *testing.T) {
	for _, s := range settings {
		for _, bad := range s.bad {
			for name, start := range sources(s.flag, s.key, s.env, bad) {
				t.Run(name+"="+bad, func(t *testing.T) {
					if bad == "http://\x7f" && name == s.key {
						t.Skip("no YAML text holds a control character")
					}
					mustFail(t, start, name)
					if s.flag != "router-policy-config" { // only the file in effect is read
						start.args = append(start.args, "--"+s.flag+"="+s.text)
						mustFail(t, start, name)
					}
				})
			}
		}
	}
}

func mustFail(t *testing.T, start setup, mentions ...string) {
	t.Helper()
	_, err := start.load()
	var invalid *config.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("Load = %v, want an InvalidError", err)
	}
	for _, word := range mentions {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not mention %q", err, word)
		}
	}
}

// TestEmptyIsUnset proves that an empty text in a source is no value (D19).
func TestEmptyIsUnset(t *testing.T) {
	for _, s := range settings {
		for name, start := range sources(s.flag, s.key, s.env, "") {
			t.Run(name, func(t *testing.T) {
				equal(t, start.mustLoad(t), config.Default())
			})
		}
	}
	t.Run("in a list of arguments", func(t *testing.T) {
		start := setup{args: []string{"--replica-sync-port", "", "--replica-sync-peers", "", "--config="}}
		equal(t, start.mustLoad(t), config.Default())
	})
}

func TestPrecedence(t *testing.T) {
	start := setup{files: map[string]string{
		"c.yaml": "server: {port: 1}",
		"d.yaml": "server: {port: 2}",
	}}
	steps := []struct {
		name string
		do   func()
		want uint16
	}{
		{"default", func() {}, 8092},
		{"file by environment", func() { start.env = map[string]string{"SELECT_SERVICE_CONFIG": "c.yaml"} }, 1},
		{"file by flag", func() { start.args = []string{"--config=d.yaml"} }, 2},
		{"environment", func() { start.env["SELECT_SERVICE_PORT"] = "3" }, 3},
		{"flag", func() { start.args = append(start.args, "--port", "4") }, 4},
		{"last flag", func() { start.args = append(start.args, "--port=5") }, 5},
		{"empty flag", func() { start.args = append(start.args, "--port=") }, 5},
	}
	for _, step := range steps { // each step adds a stronger source
		step.do()
		if got := start.mustLoad(t).Server.Port; got != step.want {
			t.Errorf("%s: port %d, want %d", step.name, got, step.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	tests := map[string]struct {
		env  map[string]string
		want func(*config.Config)
	}{
		"the router's name of the events switch goes first": {
			map[string]string{"DYN_ROUTER_USE_KV_EVENTS": "yes", "DYN_USE_KV_EVENTS": "0"},
			func(*config.Config) {},
		},
		"an empty first name leaves it to the second": {
			map[string]string{"DYN_ROUTER_USE_KV_EVENTS": "", "DYN_USE_KV_EVENTS": "0"},
			func(c *config.Config) { c.KVEvents.Enabled = false },
		},
		"old weight goes before the scale": {
			map[string]string{
				"DYN_ROUTER_PREFILL_LOAD_SCALE": "0.1", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT": "2", "DYN_OVERLAP_SCORE_WEIGHT": "0.1",
			},
			func(c *config.Config) { c.Router.PrefillScale = 2 },
		},
		"old weight 0 takes the credit": {
			map[string]string{"DYN_OVERLAP_SCORE_WEIGHT": "0", "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "0.5"},
			func(c *config.Config) { c.Router.PrefillScale, c.Router.OverlapCredit = 0, 0 },
		},
		"an overruled 0 does not": {
			map[string]string{"DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT": "2", "DYN_OVERLAP_SCORE_WEIGHT": "0"},
			func(c *config.Config) { c.Router.PrefillScale = 2 },
		},
		"threshold none": {
			map[string]string{"DYN_ROUTER_QUEUE_THRESHOLD": "None"},
			func(*config.Config) {},
		},
		"a Kubernetes service link is no port": {
			map[string]string{"SELECT_SERVICE_PORT": "tcp://10.0.0.1:8092", "SELECT_SERVICE_SLOTS_PORT": "tcp://10.0.0.1:8091", "SELECT_SERVICE_CONDUCTOR_PORT": "tcp://10.0.0.1:13333"},
			func(*config.Config) {},
		},
		"variables without effect": {
			map[string]string{
				"DYN_ROUTER_REPLICA_SYNC": "true", "DYN_ROUTER_TRACK_ACTIVE_BLOCKS": "off", "DYN_ROUTER_TRACK_OUTPUT_BLOCKS": "1",
				"DYN_ROUTER_MIN_INITIAL_WORKERS": "2",
			},
			func(*config.Config) {},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := config.Default()
			tc.want(&want)
			equal(t, setup{env: tc.env}.mustLoad(t), want)
		})
	}
}

func TestEnvironmentOnlyNamesAreChecked(t *testing.T) {
	for name, bad := range map[string]string{
		"DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT": "-1",
		"DYN_OVERLAP_SCORE_WEIGHT":           "nan",
		"SELECT_SERVICE_CONFIG":              "absent.yaml",
	} {
		mustFail(t, setup{env: map[string]string{name: bad}}, name)
	}
}

func TestPolicyFile(t *testing.T) {
	got := setup{
		env:   map[string]string{"DYN_ROUTER_POLICY_CONFIG": "p"},
		files: map[string]string{"p": policy},
	}.mustLoad(t)
	if got.Queue.File == nil || !got.Queue.Enabled() {
		t.Errorf("Queue = %+v, want the parsed policy", got.Queue)
	}
	if config.Default().Queue.Enabled() {
		t.Error("requests can wait by default, against decision D5")
	}
}

// The sections of a policy file that are not about queues: the router's settings go before
// variables and flags, which policy decides follows the variable, then the file.
func TestPolicyFileSections(t *testing.T) {
	const file = `
router: {use_kv_events: false, disk_cache_hit_weight: 0.5, router_ttl_secs: 60, router_replica_sync: true}
worker_selection:
  aggregated: two
  instances: [{name: two, type: dynamo-two-tier-cost-fn}, {name: own, type: dynamo-default-cost-fn}, {name: idle, type: nope}]
  models: {big: own, small: default}
  shadow: [default]
`
	given := setup{
		args:  []string{"--use-kv-events=true", "--router-disk-cache-hit-weight=0.1", "--contract=1.6"},
		env:   map[string]string{"DYN_ROUTER_POLICY_CONFIG": "p"},
		files: map[string]string{"p": file},
	}
	got := given.mustLoad(t)
	if got.KVEvents.Enabled || got.Router.Disk != 0.5 || got.KVEvents.ApproximateTTL != time.Minute || got.Queue.Enabled() {
		t.Errorf("the section router is not the strongest source: %+v %+v", got.KVEvents, got.Router)
	}
	table := got.WorkerSelection.Policies
	of := func(t *policies.Table, model string) *policies.Instance {
		i, _ := t.Of(catalog.Scope{Model: model, Tenant: catalog.DefaultName})
		return i
	}
	if of(table, "m").Name != "two" || of(table, "big").Name != "own" || !of(table, "small").IsBuiltIn() || len(table.Shadows()) != 1 {
		t.Errorf("policies %+v", table)
	}
	own := of(table, "big").Policy.(selector.CostFunction)
	if own.Own.Disk != 0.5 {
		t.Errorf("weights that an instance does not name are %+v, not those of the service", own.Own)
	}
	warned := strings.Join(got.Warnings(), "; ")
	if !strings.Contains(warned, "nothing names are ignored: idle") || !strings.Contains(warned, "router.router_replica_sync has no effect") {
		t.Errorf("warnings %q", warned)
	}

	given.env["DYN_ROUTER_WORKER_SELECTION_POLICY"] = " default "
	got = given.mustLoad(t)
	if table := got.WorkerSelection.Policies; !of(table, "m").IsBuiltIn() || !of(table, "big").IsBuiltIn() {
		t.Errorf("the variable does not go before the file: %+v", table)
	}
	given.env["DYN_ROUTER_WORKER_SELECTION_POLICY"] = "four"
	mustFail(t, given, `unknown worker-selection instance "four"; configured instances: idle, own, two`)
	mustFail(t, setup{env: map[string]string{"DYN_ROUTER_WORKER_SELECTION_POLICY": "two"}},
		`DYN_ROUTER_WORKER_SELECTION_POLICY: unknown worker-selection instance "two"; configured instances: <none>`)
	for file, want := range map[string]string{
		"worker_selection:\n":                        "neither policy_classes nor models is given",
		"request_classifier: {type: thunderagent}\n": "standalone selection does not support request_classifier plugins",
		"router: {x: 1}\n":                           "invalid router policy config: unknown router setting: x",
		"worker_selection: {aggregated: x}\n":        `invalid router policy config: worker_selection aggregated "x" does not name a configured instance`,
	} {
		mustFail(t, setup{env: map[string]string{"DYN_ROUTER_POLICY_CONFIG": "p"}, files: map[string]string{"p": file}}, want)
	}
}

// TestWhichPolicy proves which policy decides for a scope, and why, by the options of a start: with a port for
// requests to engines predicted-ttft, unless the user has told otherwise.
func TestWhichPolicy(t *testing.T) {
	const file = "worker_selection:\n  instances: [{name: r, type: random}]\n"
	port := "--gateway-port=9002"
	for _, tc := range []struct {
		args, env, file string
		model, tenant   string // "": m, default
		want            string
	}{
		{want: "default contract"},
		{args: port, want: "predicted-ttft front"},
		{args: "--proxy-port=8080", want: "predicted-ttft front"},
		{args: port, tenant: "blue", want: "default contract"},
		{args: port + " --gateway-model=x=m@blue", tenant: "blue", want: "predicted-ttft front"},
		{args: port + " --gateway-model=x=m@blue", want: "default contract"}, // the scope counts, not its model's name
		{args: port + " --contract=1.6", want: "predicted-ttft front"},
		{args: port + " --router-prefill-load-scale=1", want: "default weight"},
		{args: port, env: "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT=0.5", want: "default weight"},
		{args: port, env: "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT=0.5", want: "default weight"},
		{args: port + " --router-track-prefill-tokens=true --router-queue-threshold=2", want: "predicted-ttft front"}, // no weights
		{args: port + " --policy=lmetric", want: "lmetric option"},
		{args: port + " --policy=dynamo-default-cost-fn --router-temperature=1", want: "dynamo-default-cost-fn option"},
		{args: "--policy=dynamo-predicted-ttft", want: "predicted-ttft option"},
		{args: port + " --router-worker-selection-policy=default", want: "default option"},
		{args: port + " --router-worker-selection-policy=r", file: file, want: "r option"},
		{args: port, file: file + "  models: {m: r, n: default}", want: "r file"},
		{args: port, file: file + "  models: {m: r, n: default}", model: "n", want: "default file"},
		{args: port, file: file + "  models: {m: r, n: default}", model: "o", want: "predicted-ttft front"},
		{args: port, file: file + "  aggregated: default", want: "default file"},
		{args: port, file: file + "  shadow: [r]", want: "predicted-ttft front"},
		{args: port, file: "router: {host_cache_hit_weight: 0.5}", want: "predicted-ttft front"},
		{args: port, file: policy, want: "predicted-ttft front"},
		{args: "--policy=random", file: file + "  shadow: [r]", want: "random option"},
	} {
		given := setup{args: strings.Fields(tc.args), env: map[string]string{}}
		if name, text, found := strings.Cut(tc.env, "="); found {
			given.env[name] = text
		}
		if tc.file != "" {
			given.env["DYN_ROUTER_POLICY_CONFIG"], given.files = "p", map[string]string{"p": tc.file}
		}
		sc := catalog.Scope{Model: "m", Tenant: catalog.DefaultName}
		if tc.model != "" {
			sc.Model = tc.model
		}
		if tc.tenant != "" {
			sc.Tenant = tc.tenant
		}
		i, why := given.mustLoad(t).WorkerSelection.Policies.Of(sc)
		if got := i.Name + " " + string(why); got != tc.want {
			t.Errorf("%s %s %s: %s decides for %v, want %s", tc.args, tc.env, tc.file, got, sc, tc.want)
		}
	}
	named := map[string]string{"p": file + "  aggregated: r\n"}
	mustFail(t, setup{args: []string{"--policy=random", "--router-policy-config=p"}, files: named},
		"--policy: --router-policy-config: policy file p names a policy already, leave one of them out")
	mustFail(t, setup{args: []string{"--policy=random", "--router-policy-config=p"}, files: map[string]string{"p": file + "  models: {m: r}\n"}},
		"--policy: --router-policy-config: policy file p names a policy already, leave one of them out")
	mustFail(t, setup{args: []string{"--policy=random", "--router-worker-selection-policy=default"}},
		"--policy: --router-worker-selection-policy names a policy already, leave one of them out")
	mustFail(t, setup{args: []string{"--policy=nope"}}, `--policy: unknown worker-selection policy type "nope"; linked policy types: dynamo-default-cost-fn, `)
}

// TestAllFaultsAtOnce holds the message for a start where everything is wrong.
func TestAllFaultsAtOnce(t *testing.T) {
	_, err := setup{
		args: []string{
			"--prot=1", "stray", "--version=2", "--config=c.yaml", "--threads=0", "--use-kv-events=perhaps",
			"--replica-sync-peers=tcp://b:1,nope,tcp://c", "--indexer-peers=b:8092,http://ok",
			"--active-prefill-tokens-threshold-frac=nan", "--listen", "--log-level",
		},
		env: map[string]string{
			"DYN_ROUTER_TEMPERATURE":             "-1",
			"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "1.5",
			"DYN_USE_KV_EVENTS":                  "2",
			"DYN_ROUTER_POLICY_CONFIG":           "absent.yaml",
			"DYN_ROUTER_QUEUE_THRESHOLD":         "NaN",
			"DYN_ROUTER_MIN_INITIAL_WORKERS":     "few",

			"DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD":       "1.5",
			"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD":      "-1",
			"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC": "-0.5",
			"SELECT_SERVICE_OVERLOAD_RETRY_AFTER_SECS": "soon",
			"SELECT_SERVICE_METRICS_DYNAMO_ALIASES":    "some",
		},
		files: map[string]string{"c.yaml": `
server:
  port: 70000
  prot: 1
  port: 80
router: [1, 2]
routers: {}
queue:
  threshold: {a: 1}
  overlap_refresh_after_secs: .inf
overload:
  active_decode_blocks_threshold: -1
log:
  level: &l info
  format: *l
`},
	}.load()
	if err == nil {
		t.Fatal("Load accepted everything")
	}
	golden(t, "faults.golden", err.Error()+"\n")
}

func TestActions(t *testing.T) {
	bad := map[string]string{"SELECT_SERVICE_PORT": "x"}
	tests := map[string]struct {
		start setup
		want  config.Action
	}{
		"none":                        {setup{}, config.Run},
		"print":                       {setup{args: []string{"--print-config"}}, config.PrintConfig},
		"check goes before print":     {setup{args: []string{"--check-config", "--print-config"}}, config.CheckConfig},
		"version":                     {setup{args: []string{"--version"}}, config.Version},
		"help":                        {setup{args: []string{"--version", "--help"}}, config.Help},
		"short help":                  {setup{args: []string{"-h"}}, config.Help},
		"all help":                    {setup{args: []string{"--help-all", "--help"}}, config.HelpAll},
		"all help needs no good ones": {setup{args: []string{"slots", "--help-all", "--wrong"}, env: bad}, config.HelpAll},
		"help needs no good settings": {setup{args: []string{"--help", "--wrong"}, env: bad}, config.Help},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.start.mustLoad(t).Action; got != tc.want {
				t.Errorf("Action = %d, want %d", got, tc.want)
			}
		})
	}
	mustFail(t, setup{args: []string{"--check-config"}, env: bad}, "SELECT_SERVICE_PORT")
	mustFail(t, setup{args: []string{"--print-config"}, env: bad}, "SELECT_SERVICE_PORT")
}

func TestWarnings(t *testing.T) {
	tests := map[string]struct {
		start setup
		want  int
	}{
		"none": {setup{}, 0},
		"replica flags give none": {setup{args: []string{
			"--indexer-peers=http://a", "--replica-sync-port=1", "--replica-sync-peers=tcp://b:1",
		}}, 0},
		"old weight and a name without effect": {setup{env: map[string]string{
			"DYN_OVERLAP_SCORE_WEIGHT": "1", "DYN_ROUTER_REPLICA_SYNC": "true",
		}}, 2},
		"settings of 1.6 in 1.3":         {setup{args: []string{"--router-ttl-secs=5", "--router-decode-active-request-weight=1"}}, 2},
		"settings of 1.6":                {setup{args: []string{"--router-ttl-secs=5", "--contract=1.6"}}, 0},
		"a queue":                        {setup{args: []string{"--router-queue-threshold=2"}}, 0},
		"a queue and a decode threshold": {setup{args: []string{"--router-queue-threshold=2", "--active-decode-blocks-threshold=.5"}}, 0},
		"prefill thresholds alone":       {setup{args: []string{"--active-prefill-tokens-threshold=1", "--active-prefill-tokens-threshold-frac=1"}}, 0},
		"a queue and a threshold that are off": {setup{args: []string{
			"--router-queue-threshold=none", "--active-prefill-tokens-threshold=1", "--active-prefill-tokens-threshold-frac=none",
		}}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			conf := tc.start.mustLoad(t)
			if got := conf.Warnings(); len(got) != tc.want {
				t.Errorf("Warnings = %q, want %d", got, tc.want)
			}
		})
	}
}

func TestFileForms(t *testing.T) {
	tests := map[string]struct {
		content string
		want    func(*config.Config)
	}{
		"empty":         {"", func(*config.Config) {}},
		"comments only": {"# nothing\n", func(*config.Config) {}},
		"null":          {"~", func(*config.Config) {}},
		"null group":    {"server:\n", func(*config.Config) {}},
		"list": {
			"replicas: {indexer_peers: [http://a, http://b/]}",
			func(c *config.Config) { c.Replicas.IndexerPeers = []string{"http://a", "http://b"} },
		},
		"json": {`{"server": {"port": 1}}`, func(c *config.Config) { c.Server.Port = 1 }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := config.Default()
			tc.want(&want)
			equal(t, fromFile(tc.content).mustLoad(t), want)
		})
	}
	for name, content := range map[string]string{
		"unknown group": "serve: {}", "unknown key": "server: {prot: 1}", "merge key": "server: {<<: {port: 1}}",
		"top level list": "[]", "two documents": "server: {}\n---\nserver: {}", "not YAML": "server: [",
		"repeated key": "server: {port: 1, port: 1}", "repeated group": "log:\nlog:", "nested list": "replicas: {indexer_peers: [[http://a]]}",
		"bad second document": "server: {}\n---\n[",
	} {
		t.Run(name, func(t *testing.T) { mustFail(t, fromFile(content), "c.yaml") })
	}
}

// TestRemoved proves that a setting of an earlier release is refused by name from every source,
// with the reason, unless it is empty in the environment, which the slot tracker never read.
func TestRemoved(t *testing.T) {
	const ofEngines, ofReplicas = "encryption towards engines is gone", "CURVE between replicas is gone: unset this, and let replicas meet over NATS with TLS (--fleet)"
	for key, why := range map[string]string{
		"secret_key_file": ofEngines, "engine_key_file": ofEngines, "publisher_keys_file": ofEngines, "replica_key_file": ofReplicas,
	} {
		flag, env := "--zmq-curve-"+strings.ReplaceAll(key, "_", "-"), "SELECT_SERVICE_ZMQ_CURVE_"+strings.ToUpper(key)
		mustFail(t, setup{args: []string{flag + "=k"}}, flag+": "+why)
		mustFail(t, setup{env: map[string]string{env: "k"}}, env+": "+why)
		mustFail(t, setup{args: []string{"slots", flag + "=k"}}, flag+": "+why)
		mustFail(t, fromFile("curve: {"+key+": k}"), "curve."+key, why)
		setup{env: map[string]string{env: ""}}.mustLoad(t)
		setup{args: []string{"slots"}, env: map[string]string{env: "k"}}.mustLoad(t)
	}
	for flag, other := range map[string]struct{ key, why string }{
		"ui-base":                {"server.ui_base", "set --ui to the path"},
		"proxy-idle-timeout":     {"proxy.idle_timeout", "it is always 4s"},
		"max-snapshot-readers":   {"limits.max_snapshot_readers", "it is always 64"},
		"kube-block-size":        {"", "set kubernetes.block_size in the configuration file, or DYN_KV_CACHE_BLOCK_SIZE instead"},
		"kube-pools":             {"", "set kubernetes.pools in the configuration file"},
		"tokenizer-max-answer":   {"", "set gateway.tokenizer_max_answer in the configuration file, or DYN_EPP_TOKENIZER_MAX_RESPONSE_BYTES"},
		"max-reservation-blocks": {"limits.max_reservation_blocks", "it is always 4194304"},
	} {
		env := "SELECT_SERVICE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		mustFail(t, setup{args: []string{"--" + flag, "1"}}, "--"+flag+": ", other.why)
		mustFail(t, setup{env: map[string]string{env: "1"}}, env+": ", other.why)
		if group, name, ok := strings.Cut(other.key, "."); ok {
			mustFail(t, fromFile(group+": {"+name+": 1}"), other.key, other.why)
		}
		slots := setup{args: []string{"slots"}, env: map[string]string{env: "1"}}
		if strings.HasPrefix(flag, "max-") {
			mustFail(t, slots, env+": ")
		} else {
			slots.mustLoad(t)
		}
	}
}

func fromFile(content string) setup {
	return setup{args: []string{"--config", "c.yaml"}, files: map[string]string{"c.yaml": content}}
}

func TestAddress(t *testing.T) {
	s := config.Server{Listen: []string{"::1"}, Port: 8092, SlotsPort: 8091, ConductorPort: 13333}
	if got := s.Address() + " " + s.SlotsAddress() + " " + s.ConductorAddress(); got != "[::1]:8092 [::1]:8091 [::1]:13333" {
		t.Errorf("addresses are %s", got)
	}
}

// TestWeightsFollowContract: choices, and the policies that use the service's weights, count a
// request and the cached prefix as the contract does.
func TestWeightsFollowContract(t *testing.T) {
	for version, want := range map[contract.Version]selector.Weights{
		contract.V13: {}, contract.V16: {PrefixOnly: true, ActiveRequests: 0.5},
	} {
		conf := config.Default()
		conf.Server.Contract, conf.Router.ActiveRequests = version, 0.5
		if got := conf.Weights(); got.PrefixOnly != want.PrefixOnly || got.ActiveRequests != want.ActiveRequests {
			t.Errorf("contract %s: %+v", version, got)
		}
	}
}
