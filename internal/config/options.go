package config

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/workers/enginelist"
)

//go:generate go test -run=^Test(Reference|ShippedFile)$ . -rewrite

// option is one setting: its names in every source, its field, and the help text.
type option struct {
	key  string   // in the file, "group.name"; empty: environment only
	flag string   // without dashes; empty: the file and the environment alone
	env  []string // environment variables, the first one that is not empty counts; nil: that of the flag, if it has one, see variable
	also []string // further environment variables, after env
	hint string   // the placeholder of the value in the help text; empty: a boolean
	help string   // what it does, and when to change it
	bind func(*Config) value

	deprecated string // the name to use instead; a use is a warning
	inert      bool   // read for compatibility, without effect; a use is a warning

	slots     slotsUse
	slotsFlag string // the flag under "select-service slots"; empty: flag
	repeats   bool   // the texts of a repeated flag are joined; else the last one counts
	separator string // of texts that are joined; "" is a comma
	slotsHelp string // empty: help
}

// slotsUse says how an option is set under "select-service slots".
type slotsUse uint8

const (
	notInSlots slotsUse = iota // it does not have the option
	asFlag
	asVariable // by the environment alone
)

// variable returns the environment variable that follows from a flag: DYN_ROUTER_TEMPERATURE from
// router-temperature, as in Dynamo's router, and SELECT_SERVICE_PORT from port.
func variable(flag string) string {
	prefix := "SELECT_SERVICE_"
	if strings.HasPrefix(flag, "router-") {
		prefix = "DYN_"
	}
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// named fills in the environment variables of options.
func named(table []option) []option {
	for i := range table {
		o := &table[i]
		if o.env == nil && o.flag != "" {
			o.env = []string{variable(o.flag)}
		}
		o.env = append(o.env, o.also...)
	}
	return table
}

// command is the program or its subcommand "slots", with the settings that it has.
type command struct {
	head     string // of the help text with every option
	screen   screen // the help text of one screen
	options  []option
	actions  []actionFlag
	file     bool // it reads a configuration file
	defaults func() Config
}

// slotsCommand is the first argument that starts the slot tracker alone.
const slotsCommand = "slots"

var (
	selection = &command{
		head: helpHead, screen: helpScreen, options: options, actions: actionFlags, file: true, defaults: Default,
	}
	slotTracker = &command{
		head: slotsHelpHead, screen: slotsHelpScreen, options: slotsOptions(), actions: slotsActions(), defaults: DefaultSlots,
	}
)

// commandOf splits the subcommand off the arguments.
func commandOf(args []string) (*command, []string) {
	if len(args) > 0 && args[0] == slotsCommand {
		return slotTracker, args[1:]
	}
	return selection, args
}

// slotsOptions returns the options of the slot tracker's command, with its flags.
func slotsOptions() []option {
	var kept []option
	for _, o := range options {
		switch o.slots {
		case notInSlots:
			continue
		case asFlag:
			o.flag = cmp.Or(o.slotsFlag, o.flag)
		case asVariable:
			o.flag = ""
		}
		if o.slotsHelp != "" {
			o.help = o.slotsHelp
		}
		kept = append(kept, o)
	}
	return kept
}

// slotsActions are the actions that the slot tracker's command has.
func slotsActions() []actionFlag {
	var kept []actionFlag
	for _, a := range actionFlags {
		if a.action >= Version {
			kept = append(kept, a)
		}
	}
	return kept
}

// groups are the sections of the file and of the help text, in order.
var groups = []struct{ name, title string }{
	{"server", "HTTP server"},
	{"tls", "TLS: certificates of the HTTP listeners, and of reads from other replicas"},
	{"gateway", "Gateway: requests to engines, and the endpoint picker for Envoy (ext_proc)"},
	{"proxy", "Proxy: clients' requests, passed on to engines"},
	{"workers", "Workers"},
	{"kubernetes", "Kubernetes: workers that are found as pods"},
	{"kv_events", "KV events"},
	{"router", "Router: the cost of a worker and the choice among them"},
	{"queue", "Queue: requests that wait while every eligible rank is busy"},
	{"selections", "Selections of the 1.6 dialect"},
	{"reservations", "Reservations"},
	{"engines", "Engines: their reported load, their signs of life"},
	{"overload", "Overload: requests refused while every eligible worker is busy"},
	{"replicas", "Replicas: reservations that are shared, and the index at start"},
	{"fleet", "Fleet: replicas that meet over NATS"},
	{"access", "Access: who may ask for what"},
	{"data", "Data: state on disk, for a replica without others"},
	{"limits", "Limits: what outsiders can make the service use"},
	{"metrics", "Metrics"},
	{"traces", "Traces: spans of requests, for an OpenTelemetry collector"},
	{"log", "Log"},
}

// options has everything that can be set: the settings, and the variables of Dynamo's router
// that a shared environment may have.
var options = named(slices.Concat(settings, gatewaySettings, proxySettings, kubernetesSettings, fleetSettings, dynamoCompat, dynamoPicker))

// settings lists every setting, group by group. The DYN_ names and their
// defaults are those of dynamo-kv-router 1.3.1, or of 1.6.1 where 1.3.1 has none.
var settings = []option{
	{
		key: "server.listen", flag: "listen", hint: "ADDRESS", repeats: true, slots: asVariable,
		bind: func(c *Config) value { return listenAt(&c.Server.Listen) },
		help: "Address of the HTTP listeners; or unix:///path for a socket file (mode 0660, plain HTTP) that serves " +
			"programs on this machine what --port serves. For several, repeat the flag or separate them by commas. " +
			"With sockets alone there is no HTTP port. Without --tokens-file anybody may do everything: name one " +
			"interface if the default, all of them, reaches beyond a trusted network.",
	},
	{
		key: "server.port", flag: "port", also: []string{"DYN_EPP_SELECTION_HTTP_PORT"}, hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Server.Port, 0, math.MaxUint16) },
		help: "Port of the HTTP listener. 0 takes a free port and logs it, for tests.",
	},
	{
		key: "server.slots_port", flag: "slots-port", hint: "PORT",
		slotsHelp: "Port of the HTTP listener.", slots: asFlag, slotsFlag: "port",
		bind: func(c *Config) value { return integer(&c.Server.SlotsPort, 0, math.MaxUint16) },
		help: "Port of a listener of its own for the slot tracker's routes; 8091 is usual, 0 is none. Set it " +
			"for clients of the slot tracker, which know no path prefix; its routes are under /slots of " +
			"the HTTP listener in any case.",
	},
	{
		key: "server.conductor_port", flag: "conductor-port", hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Server.ConductorPort, 0, math.MaxUint16) },
		help: "Port of a listener of its own for Mooncake Conductor's indexer API; 13333 is usual, 0 is none. " +
			"Set it for routers that know no path prefix; its routes are under /conductor of the HTTP " +
			"listener in any case.",
	},
	{
		key: "server.admin_listen", flag: "admin-listen", hint: "HOST:PORT", slots: asFlag,
		bind: func(c *Config) value { return hostPort(&c.Server.AdminListen) },
		help: "Address of a listener of its own for the operators' routes (and lists), which the other listeners " +
			"then answer with 404. Set it where callers and operators are on different networks.",
	},
	{
		key: "server.debug_listen", flag: "debug-listen", hint: "HOST:PORT", slots: asFlag,
		bind: func(c *Config) value { return hostPort(&c.Server.DebugListen) },
		help: "Address of a listener of its own for profiles (/debug/pprof/) and variables (/debug/vars) of the " +
			"process, which no other listener has. Best on the loopback: profiles cost CPU, and show what the " +
			"process works on.",
	},
	{
		key: "server.ui", flag: "ui", hint: "on|off|PATH",
		bind: func(c *Config) value { return page(&c.Server.UI) },
		help: "The operators' page is at /ui/ of the HTTP listener, or of --admin-listen where that is set. Its files are " +
			"public; what it shows, it reads with the caller's token. Set off to have no page. Set a path, such as " +
			"/select-service, where a proxy shows the service below that path; the proxy may cut it or pass it on.",
	},
	{
		key: "server.contract", flag: "contract", hint: "1.3|1.6", slots: asVariable,
		bind: func(c *Config) value { return choice(&c.Server.Contract, Contract13, Contract16) },
		help: "Contract of Dynamo's selection service to follow: how the process behaves, and the names and " +
			"statuses of paths without a prefix. Set 1.6 for clients of the newer release; /v1.3 and /v1.6 " +
			"speak either dialect in any case.",
	},
	{
		key: "server.advertise_url", flag: "advertise-url", hint: "URL", slots: asVariable,
		bind: func(c *Config) value { return httpBase(&c.Server.AdvertiseURL) },
		help: "HTTP base URL under which other replicas reach this one to read its reservations. By default http:// " +
			"(with TLS https://) with the listener's address and port; if the listener is on all addresses, the " +
			"address at which a replica follows this one. Set it where ports are mapped.",
	},

	{
		key: "tls.cert", flag: "tls-cert", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.Cert) },
		help: "Certificate chain (PEM) that every HTTP listener shows: they then speak TLS 1.3 or 1.2 and no " +
			"plain HTTP. It and the other files of this group are read again when they change, and at SIGHUP.",
	},
	{
		key: "tls.key", flag: "tls-key", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.Key) },
		help: "Key (PEM) of --tls-cert.",
	},
	{
		key: "tls.client_ca", flag: "tls-client-ca", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.ClientCA) },
		help: "Authorities (PEM) one of which must have signed the certificate of every caller (mTLS).",
	},
	{
		key: "tls.peer_ca", flag: "peer-ca", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.PeerCA) },
		help: "Authorities (PEM) of the other replicas, whose index and reservations are read; by default the " +
			"system's. With it or --peer-cert they are read over https only.",
	},
	{
		key: "tls.peer_cert", flag: "peer-cert", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.PeerCert) },
		help: "Certificate chain (PEM) that reads from other replicas show; set it where they have --tls-client-ca.",
	},
	{
		key: "tls.peer_key", flag: "peer-key", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.PeerKey) },
		help: "Key (PEM) of --peer-cert.",
	},
	{
		key: "tls.engine_ca", flag: "engine-ca", hint: "FILE",
		bind: func(c *Config) value { return text(&c.TLS.EngineCA) },
		help: "Authorities (PEM) of engines behind https, where their metrics are read, where they describe themselves, and " +
			"where they or the server of --tokenizer-url are asked for tokens; by default the system's.",
	},
	{
		key: "tls.engine_cert", flag: "engine-cert", hint: "FILE",
		bind: func(c *Config) value { return text(&c.TLS.EngineCert) },
		help: "Certificate chain (PEM) that reads from engines show; set it where they want one.",
	},
	{
		key: "tls.engine_key", flag: "engine-key", hint: "FILE",
		bind: func(c *Config) value { return text(&c.TLS.EngineKey) },
		help: "Key (PEM) of --engine-cert.",
	},

	{
		key: "workers.file", flag: "workers-file", hint: "FILE",
		bind: func(c *Config) value { return text(&c.Workers.File) },
		help: "File (YAML or JSON) with the full set of workers, as PUT /workers takes it; it is followed while " +
			"the service runs. Set it where configuration management or a mounted ConfigMap knows the " +
			"workers; PUT /workers is then refused.",
	},
	{
		key: "workers.engines", flag: "engines", hint: "URLS", repeats: true,
		bind: func(c *Config) value { return list(&c.Workers.Engines, enginelist.Check) },
		help: "Engines (http://HOST:PORT) that are registered at the start and describe themselves, with " +
			"those of a workers file; PUT /workers is then refused. vllm=URL assumes vLLM's default event port " +
			"where it does not tell it, trtllm=URL that of TensorRT-LLM. Set it for a fixed fleet of engines.",
	},

	{
		key: "kv_events.enabled", flag: "use-kv-events", env: []string{"DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"},
		bind: func(c *Config) value { return boolean(&c.KVEvents.Enabled) },
		help: "Listen to the engines' KV events. Off, workers need no event endpoints and are chosen " +
			"by load alone: for engines without prefix caching or without a publisher.",
	},
	{
		key: "kv_events.threads", flag: "threads", also: []string{"DYN_ROUTER_EVENT_THREADS", "DYN_EPP_SELECTION_INDEXER_THREADS"}, hint: "N",
		bind: func(c *Config) value { return integer(&c.KVEvents.Threads, 1, MaxThreads) },
		help: "Workers that decode KV events and apply them to the index. Raise it when events lag " +
			"behind while cores are idle.",
	},
	{
		key: "kv_events.hybrid_exact", flag: "hybrid-exact",
		bind: func(c *Config) value { return boolean(&c.KVEvents.HybridExact) },
		help: "For engines that report several attention groups (sliding windows, Mamba, local chunks): count a " +
			"cached prefix as far as all groups can serve it. Off, the main group alone counts, as in Dynamo, " +
			"which promises more than such an engine has.",
	},
	{
		key: "kv_events.approximate_ttl_secs", flag: "router-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return seconds.of(&c.KVEvents.ApproximateTTL) },
		help: "With the 1.6 contract and without KV events a prompt that was booked on a rank counts as " +
			"cached there this long, 30 days at most; 0 predicts nothing. Set it to about what the engines' caches hold.",
	},
	{
		key: "kv_events.approximate_cache_policy", flag: "router-approximate-cache-policy", hint: "ttl|lru",
		bind: func(c *Config) value { return choice(&c.KVEvents.ApproximatePolicy, PolicyTTL, PolicyLRU) },
		help: "With lru, what was booked on a rank whose worker has total_kv_blocks counts as cached until the rank " +
			"needs the room, as far as the reservations of this replica tell. Needs reservations that are freed when their requests end.",
	},
	{
		key: "kv_events.predicted_ttl_secs", flag: "router-predicted-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return seconds.orNone(&c.KVEvents.PredictedTTL) },
		help: "With KV events a prompt that was booked on a rank counts as cached there this long even before the " +
			"first event of it, 30 days at most. Set it for bursts of requests with a new prefix, to about the time " +
			"from a reservation to its events.",
	},

	{
		key: "router.kv_overlap_score_credit", flag: "router-kv-overlap-score-credit", hint: "0..1",
		bind: func(c *Config) value { return number(&c.Router.OverlapCredit) },
		help: "Share of a cached device block that counts as prefill saved. Lower it to spread load at " +
			"the price of cache hits; 0 ignores the caches. The 1.6 contract allows more than 1.",
	},
	{
		key: "router.kv_overlap_score_credit_decay", flag: "router-kv-overlap-score-credit-decay", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.CreditDecay) },
		help: "Lowers the credit as the waiting prefill of a rank grows. Raise it when popular prefixes " +
			"overload the ranks that hold them.",
	},
	{
		key: "router.prefill_load_scale", flag: "router-prefill-load-scale", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.PrefillScale) },
		help: "Weight of prefill work against active decode blocks. Raise it to favour time to first " +
			"token, lower it to favour even decode load.",
	},
	{
		key: "router.host_cache_hit_weight", flag: "router-host-cache-hit-weight", hint: "0..1",
		bind: func(c *Config) value { return fraction(&c.Router.Host) },
		help: "Worth of a block in host memory against one on the device. Lower it where loading from " +
			"the host is slow.",
	},
	{
		key: "router.disk_cache_hit_weight", flag: "router-disk-cache-hit-weight", hint: "0..1",
		bind: func(c *Config) value { return fraction(&c.Router.Disk) },
		help: "Worth of a block on disk or in an external store against one on the device. Lower it " +
			"where reading it costs as much as computing it.",
	},
	{
		key: "router.decode_active_request_weight", flag: "router-decode-active-request-weight", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.ActiveRequests) },
		help: "Blocks that each active request of a rank adds to its cost (1.6 contract). Raise it where " +
			"many short requests slow a rank down more than their blocks say.",
	},
	{
		key: "router.temperature", flag: "router-temperature", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.Temperature) },
		help: "Softmax temperature of the choice. 0 always takes the cheapest rank; raise it when several " +
			"selectors without replica synchronisation send bursts to the same rank.",
	},
	{
		key: "router.track_prefill_tokens", flag: "router-track-prefill-tokens",
		bind: func(c *Config) value { return boolean(&c.Router.TrackPrefill) },
		help: "Count prompt tokens as load until prefill completes. Off where the workers only decode.",
	},
	{
		key: keyPolicyType, flag: "policy", hint: "TYPE",
		bind: func(c *Config) value { return checkedText(&c.WorkerSelection.Type, policies.TypeName) },
		help: "Type of the selection policy for all models, with its default parameters: predicted-ttft, " +
			"dynamo-default-cost-fn, least-loaded and others, see docs/how-it-works/policies.md. Without it, models that a gateway " +
			"or proxy port serves have predicted-ttft and others Dynamo's cost. A policy file that names a policy, and " +
			"--router-worker-selection-policy, exclude it.",
	},
	{
		key: "router.worker_selection_policy", flag: "router-worker-selection-policy", hint: "NAME",
		bind: func(c *Config) value { return text(&c.WorkerSelection.Name) },
		help: "Name of the policy instance that decides for all models, or default for the built-in cost. " +
			"It goes before what worker_selection in the policy file says, shadows excepted; set it to change " +
			"the policy, or to go back, without changing the file.",
	},

	{
		key: "queue.threshold", flag: "router-queue-threshold", hint: "X|none",
		bind: func(c *Config) value { return optionalNumber(&c.Queue.Threshold) },
		help: "A rank is busy above X times its max_num_batched_tokens of prefill (workers must then name " +
			"max_num_batched_tokens). Set it to hold requests back instead of piling them up; none " +
			"never queues.",
	},
	{
		key: "queue.order", flag: "router-queue-policy", hint: "ORDER",
		bind: func(c *Config) value { return choice(&c.Queue.Order, "fcfs", "lcfs", "wspt") },
		help: "Order of waiting requests without a policy file: fcfs, first come first served; lcfs, last come " +
			"first served; wspt, those with the fewest uncached tokens for their priority.",
	},
	{
		key: "queue.policy_config", flag: "router-policy-config", hint: "FILE",
		bind: func(c *Config) value { return text(&c.Queue.PolicyFile) },
		help: "Policy file (YAML), read at start: queue classes with their order and limits, which replace the " +
			"threshold, and worker_selection, which policy chooses workers. Set it to keep kinds of traffic " +
			"apart, or to choose otherwise than Dynamo.",
	},
	{
		key: "queue.overlap_refresh_after_secs", flag: "router-overlap-refresh-after-secs", hint: "SECONDS",
		bind: func(c *Config) value { return anySeconds.of(&c.Queue.OverlapRefreshAfter) },
		help: "A request that waited this long is matched with the caches again when it is admitted; " +
			"0 or less never does. Lower it where caches turn over quickly.",
	},

	{
		key: "selections.session_affinity_ttl_secs", flag: "session-affinity-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return wholeSeconds(0, maxSessionTTL).of(&c.Selections.SessionTTL) },
		help: "Requests with the same session_id go to the same rank until the session was idle for so long, " +
			"1 to 31536000; 0 is off. Set it for conversations that engines should keep. Replicas " +
			"that share reservations share it.",
	},
	{
		key: "selections.cache_ttl_secs", flag: "selection-cache-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return seconds.of(&c.Selections.Pending.TTL) },
		help: "How long a /select with a selection_id can be booked by that id alone, 30 days at most; 0 keeps none.",
	},
	{
		key: "selections.cache_max_entries", flag: "selection-cache-max-entries", hint: "N",
		bind: func(c *Config) value { return integer(&c.Selections.Pending.Entries, 0, math.MaxInt32) },
		help: "How many such selections are kept, the oldest out first; 0 keeps none.",
	},
	{
		key: "selections.cache_max_bytes", flag: "selection-cache-max-bytes", hint: "BYTES",
		bind: func(c *Config) value { return integer(&c.Selections.Pending.Bytes, 0, math.MaxInt) },
		help: "How much memory these selections may take; each takes both lists of its prompt's hashes and about 384 " +
			"bytes. 0 keeps none.",
	},
	{
		key: "selections.decisions_bytes", flag: "decisions-bytes", hint: "BYTES",
		bind: func(c *Config) value { return integer(&c.Selections.DecisionBytes, 0, math.MaxInt) },
		help: "About how much memory the recent decisions of GET /decisions may take; 0 keeps none. Above a hundred " +
			"decisions a second, only a part is kept.",
	},
	{
		key: "selections.decode_busy_threshold", flag: "decode-busy-threshold", env: []string{"DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"}, hint: "X|none",
		bind: func(c *Config) value { return multiple(&c.Selections.DecodeBusy) },
		help: "Answers say decode_busy if the worker is above this share of its total_kv_blocks, so that callers can " +
			"split prefill and decode. Nothing is refused because of it.",
	},
	{
		key: "selections.prefill_busy_threshold", flag: "prefill-busy-threshold", env: []string{"DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD"}, hint: "X|none",
		bind: func(c *Config) value { return multiple(&c.Selections.PrefillBusy) },
		help: "Advisory answers say prefill_busy if the worker is above this share of its max_num_batched_tokens.",
	},

	{
		key: "reservations.lifetime_secs", flag: "active-request-expiry-secs", env: []string{"DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS"}, hint: "SECONDS", slots: asVariable,
		bind: func(c *Config) value { return wholeSeconds(time.Second, maxDuration).of(&c.Reservations.Lifetime) },
		help: "A reservation without a lease ends by itself after so long, as its caller must have gone. Raise it " +
			"where answers take longer; replicas should agree on it.",
	},

	{
		key: "engines.token_file", flag: "engine-token-file", hint: "FILE",
		bind: func(c *Config) value { return text(&c.Engines.TokenFile) },
		help: "File with the bearer token that engines are shown, where their metrics are read, where they describe " +
			"themselves, and where they are asked for tokens; it is read again when it changes. Every registered URL gets it: it needs --allow-endpoints; use https.",
	},
	{
		key: "engines.stalled_after", flag: "stalled-after", hint: "DURATION",
		bind: func(c *Config) value { return delay.of(&c.Engines.StalledAfter) },
		help: "An engine whose load reports show unfinished work, and that gives no sign of life for so long and for four " +
			"times the predicted time of its oldest prefill, gets no new requests but one in 10 s, nor does one whose load " +
			"source has been quiet for 15 s. 0 excludes none.",
	},
	{
		key: "engines.warmup_share", flag: "warmup-share", hint: "0..1|none",
		bind: func(c *Config) value { return share(&c.Engines.WarmupShare) },
		help: "This share of the requests of which no rank has more than a quarter cached goes to new or emptied ranks, by " +
			"load alone, so that their caches fill. A rank is new for a minute. Set it where workers come and go; 0.25 is a start.",
	},

	{
		key: "overload.active_decode_blocks_threshold", flag: "active-decode-blocks-threshold", env: []string{"DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD"}, hint: "0..1|none",
		bind: func(c *Config) value { return share(&c.Overload.Thresholds.DecodeBlocks) },
		help: "A rank is busy above this share of its total_kv_blocks; ranks whose worker does not name " +
			"them are not judged by it. A worker is busy if all its ranks are. Set it to protect " +
			"decode; /busy_threshold changes it per model.",
	},
	{
		key: "overload.active_prefill_tokens_threshold", flag: "active-prefill-tokens-threshold", env: []string{"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD"}, hint: "N|none",
		bind: func(c *Config) value { return count(&c.Overload.Thresholds.PrefillTokens) },
		help: "A rank is busy above this many prompt tokens whose prefill is not complete. Set it to " +
			"bound the time to first token; /busy_threshold changes it per model.",
	},
	{
		key: "overload.active_prefill_tokens_threshold_frac", flag: "active-prefill-tokens-threshold-frac",
		env: []string{"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC"}, hint: "X|none",
		bind: func(c *Config) value { return multiple(&c.Overload.Thresholds.PrefillFraction) },
		help: "The same as X times the worker's max_num_batched_tokens, where that is known: one figure " +
			"for workers of different sizes. It may be above 1.",
	},
	{
		key: "overload.retry_after_secs", flag: "overload-retry-after-secs", also: []string{"DYN_EPP_SHED_RETRY_AFTER_SECS"}, hint: "SECONDS|none",
		bind: func(c *Config) value { return wholeSeconds(0, maxRetryAfter).orNone(&c.Overload.RetryAfter) },
		help: "Retry-After header of those refusals, and of requests through the gateway or the proxy for which there is no room; " +
			"0 sends none. Without it the gateway and the proxy send 1, and the HTTP API sends none. Set it for clients that " +
			"heed it and have no back-off of their own.",
	},

	{
		key: "replicas.indexer_peers", flag: "indexer-peers", hint: "URL,...",
		bind: func(c *Config) value { return list(&c.Replicas.IndexerPeers, httpURL) },
		help: "HTTP URLs of selectors or indexers whose /dump fills the index at start, in this order " +
			"until one has given all of it, so that a new selector knows the caches at once.",
	},
	{
		key: "replicas.recovery_deadline", flag: "recovery-deadline", hint: "DURATION",
		bind: func(c *Config) value { return duration.of(&c.Replicas.RecoveryDeadline) },
		help: "How long /ready waits for the recovery from the indexer peers, and for the reservations of " +
			"the other replicas; the recovery itself goes on. Raise it where an index takes longer and " +
			"cold selections are worse than late ones.",
	},
	{
		key: "replicas.peer_token_file", flag: "peer-token-file", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.Replicas.PeerTokenFile) },
		help: "File with the token that reads from other replicas show; it is read again when it changes. It goes " +
			"to the URLs of --indexer-peers and to the hosts of replica sync peers, and nowhere else.",
	},
	{
		key: "replicas.sync_port", flag: "replica-sync-port", also: []string{"DYN_EPP_REPLICA_SYNC_PORT"}, hint: "PORT",
		bind: func(c *Config) value { return replicaPort(&c.Replicas.SyncPort) },
		help: "ZMQ port on which reservations are published to other replicas, on all addresses; set it when " +
			"several selectors share workers.",
	},
	{
		key: "replicas.sync_bind", flag: "replica-sync-bind", hint: "ENDPOINT", slots: asFlag,
		bind: func(c *Config) value { return endpoint(&c.Replicas.SyncBind, bindable) },
		help: "ZMQ endpoint on which reservations are published to other replicas: the slot tracker's form of the " +
			"replica sync port (tcp://*:PORT), which can also name one interface.",
	},
	{
		key: "replicas.sync_advertise", flag: "replica-sync-advertise", hint: "ENDPOINT", slots: asFlag,
		bind: func(c *Config) value { return endpoint(&c.Replicas.SyncAdvertise, nil) },
		help: "This replica's own endpoint, as the other replicas name it. It is refused as a peer: at start, and when " +
			"it is registered, for example by a script that registers all replicas at each.",
	},
	{
		key: "replicas.sync_peers", flag: "replica-sync-peers", hint: "ENDPOINT,...", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Replicas.SyncPeers, replicaEndpoint) },
		help: "ZMQ endpoints (tcp://host:port) on which the other replicas publish their reservations; needs an " +
			"endpoint of our own.",
	},
	{
		key: "replicas.kube_peer_service", flag: "kube-peer-service", also: []string{"DYN_EPP_PEER_SERVICE"}, hint: "NAME",
		bind: func(c *Config) value { return checkedText(&c.Replicas.KubePeerService, kubeName) },
		help: "Service whose EndpointSlices have the other replicas; their reservations are followed, and the index is read from one of them at " +
			"start. Needs POD_IP. --replica-sync-port is then 9092 unless it is given.",
	},
	{
		key: "replicas.hosts", flag: "replica-hosts", hint: "HOST,...", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Replicas.Hosts, hostName) },
		help: "Further hosts from which reservations may be read. The URL that a replica announces must lead to the host " +
			"of its endpoint, or to one listed here, such as a proxy. In a fleet, where a replica has no endpoint: if given, " +
			"the only hosts from which the index is read and to which the token goes; else --allow-endpoints says which.",
	},

	{
		key: "access.tokens_file", flag: "tokens-file", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.Access.TokensFile) },
		help: "File (YAML) with the hashes of the callers' tokens, the names of client certificates, and their " +
			"roles; 'select-service token new' makes an entry. It is followed while the service runs. Without " +
			"it anybody may do everything.",
	},
	{
		key: "access.allowed_hosts", flag: "allowed-hosts", hint: "HOSTS", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Access.AllowedHosts, hostName) },
		help: "Host names and addresses that requests to the HTTP listeners may name, beside the address at which a " +
			"connection comes; * is any. By default listeners on the loopback accept their own names. Others then " +
			"accept any name from programs, and without tokens from browsers only addresses, names without dots, " +
			"*.svc, *.svc.cluster.local, *.localhost and their own names. Unix sockets never check it: a proxy in " +
			"front of one has to.",
	},
	{
		key: "access.allow_endpoints", flag: "allow-endpoints", hint: "RULES", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Access.AllowEndpoints, endpointRule) },
		help: "ZMQ endpoints that engines and replicas may have, such as tcp://10.0.0.0/8, tcp://10.0.0.0/8:5557, " +
			"tcp://engines.example:*. tcp://*:5557 allows that port to be bound here, for peers in the allowed " +
			"networks. A name is checked by its address at each connection. In a fleet it also holds, whatever the ports are, for the " +
			"hosts from which the index is read, unless --replica-hosts has them. Set it where callers that register are not trusted.",
	},
	{
		key: "access.allow_ipc", flag: "allow-ipc", slots: asFlag,
		bind: func(c *Config) value { return boolean(&c.Access.AllowIPC) },
		help: "Also allow ipc:// endpoints, sockets in this machine's file system. Set it where engines on the " +
			"same machine use them.",
	},

	{
		key: "data.dir", flag: "data-dir", hint: "DIRECTORY", slots: asFlag,
		bind: func(c *Config) value { return text(&c.Data.Dir) },
		help: "Directory for a snapshot of workers, bookings and index, written while the service runs and when it " +
			"stops, and read at start. Set it where there is only one replica, which otherwise starts empty; with " +
			"several, the state comes from the others. Only one process can use it.",
	},
	{
		key: "data.snapshot_interval", flag: "snapshot-interval", hint: "DURATION", slots: asFlag,
		bind: func(c *Config) value { return duration.of(&c.Data.SnapshotInterval) },
		help: "Time between two snapshots in --data-dir. What is booked after the last one is lost if the process " +
			"is killed. Writing takes no more than a twentieth of a core, so that a large index may need longer.",
	},

	{
		key: "limits.max_memory", flag: "max-memory", hint: "BYTES", slots: asFlag,
		bind: func(c *Config) value { return memory(&c.Limits.MaxMemory) },
		help: "Memory that requests, event streams, replicas, index and bookings share, at least 64MiB, with KiB, MiB or " +
			"GiB; by default three quarters of the cgroup's limit, else of the machine. Each has a part of it. What " +
			"exceeds its part is refused, paused or dropped, and counted.",
	},
	{
		key: "limits.scan_cache", flag: "scan-cache", hint: "BYTES",
		bind: func(c *Config) value { return size(&c.Limits.ScanCache) },
		help: "Memory for the token ids of long prompts by their text, with KiB, MiB or GiB, so that what prompts have in " +
			"common is read once; at most a fiftieth of --max-memory. 64 MiB have a hundred contexts of 50,000 tokens. 0 keeps none.",
	},
	{
		key: "limits.max_workers", flag: "max-workers", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxWorkers, 1, math.MaxInt32) },
		help: "Workers that may be registered, of all models and tenants; further ones are refused with 409.",
	},
	{
		key: "limits.max_ranks", flag: "max-ranks", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxRanks, 1, math.MaxInt32) },
		help: "Data-parallel ranks that all workers together may have; further workers are refused with 409.",
	},
	{
		key: "limits.max_streams", flag: "max-streams", hint: "N",
		bind: func(c *Config) value { return integer(&c.Limits.MaxStreams, 1, math.MaxInt32) },
		help: "Streams of KV events that all workers together may have; further workers are refused with 409.",
	},
	{
		key: "limits.max_models", flag: "max-models", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxModels, 1, math.MaxInt32) },
		help: "Models that may have workers; a model for two tenants counts twice. Workers of further ones are " +
			"refused with 409.",
	},
	{
		key: "limits.max_reservations", flag: "max-reservations", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxReservations, 1, math.MaxInt32) },
		help: "Live reservations; further ones are refused with 503. Those of other replicas are not taken beyond " +
			"three quarters of it.",
	},
	{
		key: "limits.max_peers", flag: "max-peers", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxPeers, 1, maxPeers) },
		help: "Replicas whose reservations are followed; further ones are refused with 409.",
	},
	{
		key: "limits.max_connections", flag: "max-connections", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxConnections, 1, maxConnections) },
		help: "Most connections of all listeners together, Envoy's included. Beyond it an idle HTTP connection is closed " +
			"for a new one; if none is idle, the new one is refused. The same number of requests over HTTP/2 is served " +
			"at a time. It is lowered to what the limit of open files allows.",
	},
	{
		key: "limits.max_connections_per_address", flag: "max-connections-per-address", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxConnectionsPerAddress, 0, maxConnections) },
		help: "Most connections, and requests over HTTP/2 with them, from one address (IPv6: one /64 network); 0 is no " +
			"limit. Set it where callers do not share an address, as they do behind a proxy.",
	},

	{
		key: "metrics.dynamo_aliases", flag: "metrics-dynamo-aliases",
		bind: func(c *Config) value { return boolean(&c.Metrics.DynamoAliases) },
		help: "Show metrics also under the names of Dynamo's KV indexer (dynamo_kvindexer_..., " +
			"dynamo_kvrouter_...), for dashboards that were made for it.",
	},

	{
		key: "traces.otlp_endpoint", flag: "otlp-endpoint", hint: "URL",
		bind: func(c *Config) value { return httpBase(&c.Traces.Endpoint) },
		help: "Base URL of an OpenTelemetry collector's OTLP receiver, which gets spans of requests, events, recovery and " +
			"snapshots: port 4317 is asked by gRPC, others by HTTP. Without it OTEL_EXPORTER_OTLP_ENDPOINT counts; without " +
			"either nothing is traced. The other variables of OpenTelemetry say the rest, OTEL_TRACES_SAMPLER how many " +
			"requests are traced: see docs/run/traces.md.",
	},

	{
		key: "log.level", flag: "log-level", hint: "LEVEL", slots: asVariable,
		bind: func(c *Config) value { return choice(&c.Log.Level, "trace", "debug", "info", "warn", "error") },
		help: "Least severe level that is logged: trace, debug, info, warn or error. info has the listeners, " +
			"what happens to event streams, publishers, peers and thresholds, and every 10 seconds which " +
			"models refused requests; debug adds a line for each HTTP request and the faults of connections; " +
			"trace adds nothing.",
	},
	{
		key: "log.format", flag: "log-format", hint: "FORMAT", slots: asVariable,
		bind: func(c *Config) value { return choice(&c.Log.Format, "json", "console") },
		help: "json for collectors, console for people, with colours on a terminal.",
	},
}
