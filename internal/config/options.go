package config

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/workers/enginelist"
	"github.com/select-service/select-service/pkg/selector"
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

// withVariables fills in the environment variables of options.
func withVariables(table []option) []option {
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
var options = withVariables(slices.Concat(settings, gatewaySettings, proxySettings, kubernetesSettings, fleetSettings, dynamoCompat, dynamoPicker))

// settings lists every setting, group by group. The DYN_ names and their
// defaults are those of dynamo-kv-router 1.3.1, or of 1.6.1 where 1.3.1 has none.
var settings = []option{
	{
		key: "server.listen", flag: "listen", hint: "ADDRESS", repeats: true, slots: asVariable,
		bind: func(c *Config) value { return listenAt(&c.Server.Listen) },
		help: "The address of the HTTP listeners. unix:///path is a socket file (mode 0660, plain HTTP), which serves " +
			"programs on this machine what --port serves. For several addresses, repeat the flag or separate them by " +
			"commas. With sockets alone there is no HTTP port. Without --tokens-file anybody who reaches the listener " +
			"may do everything: name one interface if the default, all of them, reaches beyond a trusted network.",
	},
	{
		key: "server.port", flag: "port", also: []string{"DYN_EPP_SELECTION_HTTP_PORT"}, hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Server.Port, 0, math.MaxUint16) },
		help: "The port of the HTTP listener. 0 takes a free port and logs it, for tests.",
	},
	{
		key: "server.slots_port", flag: "slots-port", hint: "PORT",
		slotsHelp: "Port of the HTTP listener.", slots: asFlag, slotsFlag: "port",
		bind: func(c *Config) value { return integer(&c.Server.SlotsPort, 0, math.MaxUint16) },
		help: "The port of a separate listener for the slot tracker's routes. 8091 is usual; 0 opens none. Set it for " +
			"clients of the slot tracker that know no path prefix. The routes are under /slots of the HTTP listener in " +
			"any case.",
	},
	{
		key: "server.conductor_port", flag: "conductor-port", hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Server.ConductorPort, 0, math.MaxUint16) },
		help: "The port of a separate listener for the indexer API of Mooncake Conductor. 13333 is usual; 0 opens none. " +
			"Set it for routers that know no path prefix. The routes are under /conductor of the HTTP listener in any " +
			"case.",
	},
	{
		key: "server.admin_listen", flag: "admin-listen", hint: "HOST:PORT", slots: asFlag,
		bind: func(c *Config) value { return hostPort(&c.Server.AdminListen) },
		help: "The address of a separate listener for the operators' routes and lists. The other listeners then answer " +
			"those routes with 404. Set it where callers and operators are on different networks.",
	},
	{
		key: "server.debug_listen", flag: "debug-listen", hint: "HOST:PORT", slots: asFlag,
		bind: func(c *Config) value { return hostPort(&c.Server.DebugListen) },
		help: "The address of a separate listener for profiles (/debug/pprof/) and variables (/debug/vars) of the " +
			"process. No other listener has them. It is best on the loopback: profiles cost CPU, and they show what the " +
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
		bind: func(c *Config) value { return named(&c.Server.Contract, contract.V13, contract.V16) },
		help: "The contract of Dynamo's selection service that the process follows. It decides how the process behaves, " +
			"and the names and statuses of paths without a prefix. Set 1.6 for clients of the newer release. /v1.3 and " +
			"/v1.6 speak either dialect in any case.",
	},
	{
		key: "server.advertise_url", flag: "advertise-url", hint: "URL", slots: asVariable,
		bind: func(c *Config) value { return httpBase(&c.Server.AdvertiseURL) },
		help: "The base URL under which other replicas reach this one to read its reservations. By default it has the " +
			"scheme, address and port of the HTTP listener. If the listener is on all addresses, it has the address at " +
			"which a replica follows this one. Set it where ports are mapped.",
	},

	{
		key: "tls.cert", flag: "tls-cert", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.Cert) },
		help: "The certificate chain (PEM) that every HTTP listener shows. The listeners then speak TLS 1.3 or 1.2 and no " +
			"plain HTTP. All files of this group are read again when they change, and at SIGHUP.",
	},
	{
		key: "tls.key", flag: "tls-key", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.Key) },
		help: "The key (PEM) of --tls-cert.",
	},
	{
		key: "tls.client_ca", flag: "tls-client-ca", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.ClientCA) },
		help: "Authorities (PEM). One of them must have signed the certificate of every caller (mTLS).",
	},
	{
		key: "tls.peer_ca", flag: "peer-ca", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.PeerCA) },
		help: "Authorities (PEM) of the other replicas, whose index and reservations are read. By default they are the " +
			"system's. With this option or --peer-cert, replicas are read over https only.",
	},
	{
		key: "tls.peer_cert", flag: "peer-cert", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.PeerCert) },
		help: "The certificate chain (PEM) that this replica shows when it reads from others. Set it where they have " +
			"--tls-client-ca.",
	},
	{
		key: "tls.peer_key", flag: "peer-key", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.TLS.PeerKey) },
		help: "The key (PEM) of --peer-cert.",
	},
	{
		key: "tls.engine_ca", flag: "engine-ca", hint: "FILE",
		bind: func(c *Config) value { return text(&c.TLS.EngineCA) },
		help: "Authorities (PEM) of engines behind https: where their metrics are read, where they describe themselves, " +
			"and where they or the server of --tokenizer-url are asked for tokens. By default they are the system's.",
	},
	{
		key: "tls.engine_cert", flag: "engine-cert", hint: "FILE",
		bind: func(c *Config) value { return text(&c.TLS.EngineCert) },
		help: "The certificate chain (PEM) that engines are shown. Set it where they want one.",
	},
	{
		key: "tls.engine_key", flag: "engine-key", hint: "FILE",
		bind: func(c *Config) value { return text(&c.TLS.EngineKey) },
		help: "The key (PEM) of --engine-cert.",
	},

	{
		key: "workers.file", flag: "workers-file", hint: "FILE",
		bind: func(c *Config) value { return text(&c.Workers.File) },
		help: "A file (YAML or JSON) with the full set of workers, as PUT /workers takes it. Its changes are followed " +
			"while the service runs. Set it where configuration management or a mounted ConfigMap knows the workers. " +
			"PUT /workers is then refused.",
	},
	{
		key: "workers.engines", flag: "engines", hint: "URLS", repeats: true,
		bind: func(c *Config) value { return list(&c.Workers.Engines, enginelist.Check) },
		help: "Engines (http://HOST:PORT) that are registered at the start and describe themselves. A workers file may " +
			"name others. PUT /workers is then refused. vllm=URL assumes the default event port of vLLM if the engine " +
			"does not tell its own; trtllm=URL assumes that of TensorRT-LLM. Set it if the engines have fixed " +
			"addresses.",
	},

	{
		key: "kv_events.enabled", flag: "use-kv-events", env: []string{"DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"},
		bind: func(c *Config) value { return boolean(&c.KVEvents.Enabled) },
		help: "The service listens to the engines' KV events. Set it to false for engines without prefix caching or " +
			"without a publisher: workers then need no event endpoints, and load alone decides.",
	},
	{
		key: "kv_events.threads", flag: "threads", also: []string{"DYN_ROUTER_EVENT_THREADS", "DYN_EPP_SELECTION_INDEXER_THREADS"}, hint: "N",
		bind: func(c *Config) value { return integer(&c.KVEvents.Threads, 1, MaxThreads) },
		help: "How many threads decode KV events and apply them to the index. Raise it when events lag behind while cores " +
			"are idle.",
	},
	{
		key: "kv_events.hybrid_exact", flag: "hybrid-exact",
		bind: func(c *Config) value { return boolean(&c.KVEvents.HybridExact) },
		help: "For engines that report several attention groups (sliding windows, Mamba, local chunks), a cached prefix " +
			"counts as far as all groups can serve it. If this is false, the main group alone counts, as in Dynamo, " +
			"which promises more than such an engine has.",
	},
	{
		key: "kv_events.approximate_ttl_secs", flag: "router-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return seconds.of(&c.KVEvents.ApproximateTTL) },
		help: "With the 1.6 contract and without KV events, a prompt that was booked on a rank counts as cached there for " +
			"so long, 30 days at most. 0 predicts nothing. Set it to about the time that the engines keep a prompt.",
	},
	{
		key: "kv_events.approximate_cache_policy", flag: "router-approximate-cache-policy", hint: "ttl|lru",
		bind: func(c *Config) value { return choice(&c.KVEvents.ApproximatePolicy, PolicyTTL, PolicyLRU) },
		help: "With lru, a prompt that was booked on a rank counts as cached there until the rank needs the room, as far " +
			"as the reservations of this replica tell. The worker has to have total_kv_blocks, and reservations have to " +
			"be freed when their requests end.",
	},
	{
		key: "kv_events.predicted_ttl_secs", flag: "router-predicted-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return seconds.orNone(&c.KVEvents.PredictedTTL) },
		help: "With KV events, a prompt that was booked on a rank counts as cached there for so long before its first " +
			"event comes, 30 days at most. Set it for bursts of requests with a new prefix, to about the time from a " +
			"reservation to its events.",
	},

	{
		key: "router.kv_overlap_score_credit", flag: "router-kv-overlap-score-credit", hint: "0..1",
		bind: func(c *Config) value { return number(&c.Router.OverlapCredit) },
		help: "The share of a cached block on the device that counts as prefill saved. Lower it to spread load at the " +
			"price of cache hits; 0 ignores the caches. The 1.6 contract allows more than 1.",
	},
	{
		key: "router.kv_overlap_score_credit_decay", flag: "router-kv-overlap-score-credit-decay", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.CreditDecay) },
		help: "How much the credit falls as the waiting prefill of a rank grows. Raise it when popular prefixes overload " +
			"the ranks that hold them.",
	},
	{
		key: "router.prefill_load_scale", flag: "router-prefill-load-scale", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.PrefillScale) },
		help: "The weight of prefill work against active decode blocks. Raise it to favour time to first token; lower it " +
			"to favour even decode load.",
	},
	{
		key: "router.host_cache_hit_weight", flag: "router-host-cache-hit-weight", hint: "0..1",
		bind: func(c *Config) value { return fraction(&c.Router.Host) },
		help: "What a block in host memory is worth, compared with one on the device. Lower it where loading from the " +
			"host is slow.",
	},
	{
		key: "router.disk_cache_hit_weight", flag: "router-disk-cache-hit-weight", hint: "0..1",
		bind: func(c *Config) value { return fraction(&c.Router.Disk) },
		help: "What a block on disk or in an external store is worth, compared with one on the device. Lower it where " +
			"reading a block costs as much as computing it.",
	},
	{
		key: "router.decode_active_request_weight", flag: "router-decode-active-request-weight", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.ActiveRequests) },
		help: "How many blocks each active request of a rank adds to its cost (1.6 contract). Raise it where many short " +
			"requests slow a rank down more than their blocks say.",
	},
	{
		key: "router.temperature", flag: "router-temperature", hint: "X",
		bind: func(c *Config) value { return number(&c.Router.Temperature) },
		help: "The softmax temperature of the choice. 0 always takes the cheapest rank. Raise it when several selectors " +
			"without replica synchronisation send bursts to the same rank.",
	},
	{
		key: "router.track_prefill_tokens", flag: "router-track-prefill-tokens",
		bind: func(c *Config) value { return boolean(&c.Router.TrackPrefill) },
		help: "Prompt tokens count as load until prefill completes. Set it to false where the workers only decode.",
	},
	{
		key: keyPolicyType, flag: "policy", hint: "TYPE",
		bind: func(c *Config) value { return checkedText(&c.WorkerSelection.Type, policies.TypeName) },
		help: "The type of the selection policy for all models, with its default parameters: predicted-ttft, " +
			"dynamo-default-cost-fn, least-loaded and others, see docs/how-it-works/policies.md. Without this option, " +
			"models that a gateway or proxy port serves have predicted-ttft, and others have Dynamo's cost. It cannot " +
			"be combined with --router-worker-selection-policy, nor with a policy file that names a policy.",
	},
	{
		key: "router.worker_selection_policy", flag: "router-worker-selection-policy", hint: "NAME",
		bind: func(c *Config) value { return text(&c.WorkerSelection.Name) },
		help: "The name of the policy instance that decides for all models; default is the built-in cost. It goes before " +
			"what worker_selection in the policy file says, shadows excepted. Set it to change the policy, or to go " +
			"back, without changing the file.",
	},

	{
		key: "queue.threshold", flag: "router-queue-threshold", hint: "X|none",
		bind: func(c *Config) value { return optionalNumber(&c.Queue.Threshold) },
		help: "A rank is busy if its waiting prefill is above this multiple of its max_num_batched_tokens, which workers " +
			"must then name. Set it to hold requests back instead of piling them up. With none no request waits.",
	},
	{
		key: "queue.order", flag: "router-queue-policy", hint: "ORDER",
		bind: func(c *Config) value { return named(&c.Queue.Order, admission.FCFS, admission.LCFS, admission.WSPT) },
		help: "The order of waiting requests without a policy file: fcfs is first come first served, lcfs is last come " +
			"first served, and wspt takes those with the fewest uncached tokens for their priority.",
	},
	{
		key: "queue.policy_config", flag: "router-policy-config", hint: "FILE",
		bind: func(c *Config) value { return text(&c.Queue.PolicyFile) },
		help: "A policy file (YAML), which is read at the start. It has queue classes with their order and limits, which " +
			"replace the threshold, and it says in worker_selection which policy chooses workers. Set it to keep kinds " +
			"of traffic apart, or to choose otherwise than Dynamo.",
	},
	{
		key: "queue.overlap_refresh_after_secs", flag: "router-overlap-refresh-after-secs", hint: "SECONDS",
		bind: func(c *Config) value { return anySeconds.of(&c.Queue.OverlapRefreshAfter) },
		help: "A request that has waited so long is matched with the caches again when it is admitted. 0 or less never " +
			"does this. Lower it where caches turn over quickly.",
	},

	{
		key: keySessionTTL, flag: "session-affinity-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return wholeSeconds(0, maxSessionTTL).of(&c.Selections.SessionTTL) },
		help: "Requests with the same session_id go to the same rank until the session was idle for so long, from 1 to " +
			"31536000. 0 switches this off. Set it for conversations that engines should keep. Replicas that share " +
			"reservations share sessions.",
	},
	{
		key: "selections.session_groups", flag: "session-groups",
		bind: func(c *Config) value { return optional(&c.Selections.Groups, parseBool) },
		help: "Whether the sessions that one session has started, as an agent starts its sub-agents, stay together. " +
			"Without it those of the gateway and the proxy do, and those that --session-affinity-ttl-secs binds for the " +
			"HTTP API do not.",
	},
	{
		key: "selections.cache_ttl_secs", flag: "selection-cache-ttl-secs", hint: "SECONDS",
		bind: func(c *Config) value { return seconds.of(&c.Selections.Pending.TTL) },
		help: "For how long a /select with a selection_id can be booked by that id alone, 30 days at most. 0 keeps no " +
			"selection.",
	},
	{
		key: "selections.cache_max_entries", flag: "selection-cache-max-entries", hint: "N",
		bind: func(c *Config) value { return integer(&c.Selections.Pending.Entries, 0, math.MaxInt32) },
		help: "How many such selections are kept. Beyond it the oldest goes. 0 keeps no selection.",
	},
	{
		key: "selections.cache_max_bytes", flag: "selection-cache-max-bytes", hint: "BYTES",
		bind: func(c *Config) value { return integer(&c.Selections.Pending.Bytes, 0, math.MaxInt) },
		help: "How much memory these selections may take. Each takes both lists of its prompt's hashes and about 384 " +
			"bytes. 0 keeps no selection.",
	},
	{
		key: "selections.decisions_bytes", flag: "decisions-bytes", hint: "BYTES",
		bind: func(c *Config) value { return integer(&c.Selections.DecisionBytes, 0, math.MaxInt) },
		help: "About how much memory the recent decisions of GET /decisions may take. 0 keeps none. Above a hundred " +
			"decisions a second only a part of them is kept.",
	},
	{
		key: "selections.request_targets", flag: "request-targets",
		bind: func(c *Config) value { return boolean(&c.Selections.RequestTargets) },
		help: "Requests may say how soon they want their first token and their whole answer, by members of the API and by " +
			"headers of the gateway and the proxy. Set it to false where clients should not: what they say is then " +
			"counted and has no effect.",
	},
	{
		key: "selections.kv_fetch", flag: "kv-fetch", hint: "MODE",
		bind: func(c *Config) value {
			return named(&c.Selections.Fetch, selector.FetchContract, selector.FetchOff, selector.FetchPriced)
		},
		help: "When engines whose worker records ask for it are told to fetch KV caches from one another: contract always " +
			"names the rank with the most of the prompt, as Dynamo does; priced names one where fetching is predicted to be " +
			"sooner than computing, and chooses ranks by that; off never does. See docs/run/kv-hints.md.",
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
		help: "A reservation without a lease ends by itself after so long, because its caller must have gone. Raise it " +
			"where answers take longer. Replicas should have the same value.",
	},

	{
		key: "engines.token_file", flag: "engine-token-file", hint: "FILE",
		bind: func(c *Config) value { return text(&c.Engines.TokenFile) },
		help: "A file with the bearer token that engines are shown: where their metrics are read, where they describe " +
			"themselves, and where they are asked for tokens. It is read again when it changes. The engine of every " +
			"registered URL gets the token, so this option needs --allow-endpoints. Use it with https.",
	},
	{
		key: "engines.stalled_after", flag: "stalled-after", hint: "DURATION",
		bind: func(c *Config) value { return delay.of(&c.Engines.StalledAfter) },
		help: "An engine counts as stalled if its load reports show unfinished work and it gives no sign of life for so " +
			"long, and for four times the predicted time of its oldest prefill. It then gets no new requests but one in " +
			"10 seconds. The same holds for an engine whose load source has been quiet for 15 seconds. 0 excludes no " +
			"engine.",
	},
	{
		key: "engines.warmup_share", flag: "warmup-share", hint: "0..1|none",
		bind: func(c *Config) value { return share(&c.Engines.WarmupShare) },
		help: "This share of the requests of which no rank has more than a quarter cached goes to new or emptied ranks, " +
			"by load alone, so that their caches fill. A rank is new for a minute. Set it where workers come and go; " +
			"0.25 is a start.",
	},

	{
		key: "overload.active_decode_blocks_threshold", flag: "active-decode-blocks-threshold", env: []string{"DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD"}, hint: "0..1|none",
		bind: func(c *Config) value { return share(&c.Overload.Thresholds.DecodeBlocks) },
		help: "A rank is busy above this share of its total_kv_blocks. Ranks whose worker does not name them are not " +
			"judged by it. A worker is busy if all its ranks are. Set it to protect decode; /busy_threshold changes it " +
			"for a model.",
	},
	{
		key: "overload.active_prefill_tokens_threshold", flag: "active-prefill-tokens-threshold", env: []string{"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD"}, hint: "N|none",
		bind: func(c *Config) value { return count(&c.Overload.Thresholds.PrefillTokens) },
		help: "A rank is busy above this many prompt tokens whose prefill is not complete. Set it to bound the time to " +
			"first token; /busy_threshold changes it for a model.",
	},
	{
		key: "overload.active_prefill_tokens_threshold_frac", flag: "active-prefill-tokens-threshold-frac",
		env: []string{"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC"}, hint: "X|none",
		bind: func(c *Config) value { return multiple(&c.Overload.Thresholds.PrefillFraction) },
		help: "The same as a multiple of the worker's max_num_batched_tokens, where that is known, so that one figure " +
			"fits workers of different sizes. It may be above 1.",
	},
	{
		key: "overload.retry_after_secs", flag: "overload-retry-after-secs", also: []string{"DYN_EPP_SHED_RETRY_AFTER_SECS"}, hint: "SECONDS|none",
		bind: func(c *Config) value { return wholeSeconds(0, maxRetryAfter).orNone(&c.Overload.RetryAfter) },
		help: "The Retry-After header of those refusals, and of requests through the gateway or the proxy for which there " +
			"is no room. 0 sends none. Without this option the gateway and the proxy send 1, and the HTTP API sends " +
			"none. Set it for clients that heed the header and have no back-off of their own.",
	},

	{
		key: "replicas.indexer_peers", flag: "indexer-peers", hint: "URL,...",
		bind: func(c *Config) value { return list(&c.Replicas.IndexerPeers, httpURL) },
		help: "HTTP URLs of selectors or indexers. At the start the index is filled from the /dump of the first one that " +
			"gives all of it, in this order, so that a new selector knows the caches at once.",
	},
	{
		key: "replicas.recovery_deadline", flag: "recovery-deadline", hint: "DURATION",
		bind: func(c *Config) value { return duration.of(&c.Replicas.RecoveryDeadline) },
		help: "How long /ready waits for the index of the indexer peers, and for the reservations of the other replicas. " +
			"The recovery itself goes on afterwards. Raise it where an index takes longer and cold selections are worse " +
			"than late ones.",
	},
	{
		key: "replicas.peer_token_file", flag: "peer-token-file", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.Replicas.PeerTokenFile) },
		help: "A file with the token that this replica shows when it reads from others. It is read again when it changes. " +
			"The token goes to the URLs of --indexer-peers and to the hosts of replica sync peers, and nowhere else.",
	},
	{
		key: "replicas.sync_port", flag: "replica-sync-port", also: []string{"DYN_EPP_REPLICA_SYNC_PORT"}, hint: "PORT",
		bind: func(c *Config) value { return replicaPort(&c.Replicas.SyncPort) },
		help: "The ZMQ port, on all addresses, on which reservations are published to other replicas. Set it when several " +
			"selectors share workers.",
	},
	{
		key: "replicas.sync_bind", flag: "replica-sync-bind", hint: "ENDPOINT", slots: asFlag,
		bind: func(c *Config) value { return endpoint(&c.Replicas.SyncBind, bindable) },
		help: "The ZMQ endpoint on which reservations are published to other replicas. It is the slot tracker's form of " +
			"the replica sync port (tcp://*:PORT), and can also name one interface.",
	},
	{
		key: "replicas.sync_advertise", flag: "replica-sync-advertise", hint: "ENDPOINT", slots: asFlag,
		bind: func(c *Config) value { return endpoint(&c.Replicas.SyncAdvertise, nil) },
		help: "The endpoint of this replica, as the other replicas name it. It is refused as a peer, both at the start " +
			"and when it is registered, for example by a script that registers all replicas at each.",
	},
	{
		key: "replicas.sync_peers", flag: "replica-sync-peers", hint: "ENDPOINT,...", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Replicas.SyncPeers, replicaEndpoint) },
		help: "ZMQ endpoints (tcp://host:port) on which the other replicas publish their reservations. This replica needs " +
			"an endpoint, too.",
	},
	{
		key: "replicas.kube_peer_service", flag: "kube-peer-service", also: []string{"DYN_EPP_PEER_SERVICE"}, hint: "NAME",
		bind: func(c *Config) value { return checkedText(&c.Replicas.KubePeerService, kubeName) },
		help: "A Service whose EndpointSlices have the other replicas. Their reservations are followed, and the index is " +
			"read from one of them at the start. It needs the variable POD_IP. --replica-sync-port is then 9092 unless " +
			"it is given.",
	},
	{
		key: "replicas.hosts", flag: "replica-hosts", hint: "HOST,...", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Replicas.Hosts, hostName) },
		help: "Further hosts from which reservations may be read. The URL that a replica announces must lead to the host " +
			"of its endpoint, or to one listed here, such as a proxy. In a fleet replicas have no endpoints: these are " +
			"then the only hosts from which the index is read and to which the token goes. Without this option " +
			"--allow-endpoints says which hosts these are.",
	},

	{
		key: "access.tokens_file", flag: "tokens-file", hint: "FILE", slots: asFlag,
		bind: func(c *Config) value { return text(&c.Access.TokensFile) },
		help: "A file (YAML) with the hashes of the callers' tokens, the names of client certificates, and their roles. " +
			"'select-service token new' makes an entry. Its changes are followed while the service runs. Without it " +
			"anybody may do everything.",
	},
	{
		key: "access.allowed_hosts", flag: "allowed-hosts", hint: "HOSTS", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Access.AllowedHosts, hostName) },
		help: "Host names and addresses that requests to the HTTP listeners may name, beside the address at which a " +
			"connection comes; * is any. By default listeners on the loopback accept their own names. Other listeners " +
			"accept any name from programs. Without tokens they accept from browsers only addresses, names without " +
			"dots, *.svc, *.svc.cluster.local, *.localhost and their own names. Unix sockets never check the name: a " +
			"proxy in front of one has to.",
	},
	{
		key: "access.allow_endpoints", flag: "allow-endpoints", hint: "RULES", slots: asFlag,
		bind: func(c *Config) value { return list(&c.Access.AllowEndpoints, endpointRule) },
		help: "ZMQ endpoints that engines and replicas may have, such as tcp://10.0.0.0/8, tcp://10.0.0.0/8:5557 and " +
			"tcp://engines.example:*. tcp://*:5557 allows that port to be bound here, for peers in the allowed " +
			"networks. A name is checked by its address at each connection. In a fleet the rules hold for the hosts " +
			"from which the index is read, too, whatever the ports are, unless --replica-hosts names the hosts. Set " +
			"this where callers that register workers are not trusted.",
	},
	{
		key: "access.allow_ipc", flag: "allow-ipc", slots: asFlag,
		bind: func(c *Config) value { return boolean(&c.Access.AllowIPC) },
		help: "ipc:// endpoints, which are sockets in this machine's file system, are allowed, too. Set it where engines " +
			"on the same machine use them.",
	},

	{
		key: "data.dir", flag: "data-dir", hint: "DIRECTORY", slots: asFlag,
		bind: func(c *Config) value { return text(&c.Data.Dir) },
		help: "A directory for a snapshot of workers, bookings and index. It is written while the service runs and when " +
			"it stops, and it is read at the start. Set it where there is only one replica, which otherwise starts " +
			"empty; with several, the state comes from the others. Only one process can use a directory.",
	},
	{
		key: "data.snapshot_interval", flag: "snapshot-interval", hint: "DURATION", slots: asFlag,
		bind: func(c *Config) value { return duration.of(&c.Data.SnapshotInterval) },
		help: "The time between two snapshots in --data-dir. What is booked after the last one is lost if the process is " +
			"killed. Writing takes no more than a twentieth of a core, so that a large index may need longer.",
	},

	{
		key: "limits.max_memory", flag: "max-memory", hint: "BYTES", slots: asFlag,
		bind: func(c *Config) value { return memory(&c.Limits.MaxMemory) },
		help: "The memory that requests, event streams, replicas, index and bookings share. It is at least 64MiB, and may " +
			"have the units KiB, MiB and GiB. By default it is three quarters of the cgroup's limit, or of the " +
			"machine's memory. Each user of memory has a part of it. What exceeds its part is refused, paused or " +
			"dropped, and counted.",
	},
	{
		key: "limits.scan_cache", flag: "scan-cache", hint: "BYTES",
		bind: func(c *Config) value { return size(&c.Limits.ScanCache) },
		help: "The memory for the token ids of long prompts by their text, with the units KiB, MiB and GiB. What prompts " +
			"have in common is then read once. It is at most a fiftieth of --max-memory. 64 MiB hold a hundred contexts " +
			"of 50,000 tokens. 0 keeps none.",
	},
	{
		key: "limits.max_workers", flag: "max-workers", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.Catalog.Workers, 1, math.MaxInt32) },
		help: "How many workers may be registered, of all models and tenants. Further ones are refused with 409.",
	},
	{
		key: "limits.max_ranks", flag: "max-ranks", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.Catalog.Ranks, 1, math.MaxInt32) },
		help: "How many data-parallel ranks all workers may have together. Further workers are refused with 409.",
	},
	{
		key: "limits.max_streams", flag: "max-streams", hint: "N",
		bind: func(c *Config) value { return integer(&c.Limits.Catalog.Streams, 1, math.MaxInt32) },
		help: "How many streams of KV events all workers may have together. Further workers are refused with 409.",
	},
	{
		key: "limits.max_models", flag: "max-models", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.Catalog.Scopes, 1, math.MaxInt32) },
		help: "How many models may have workers. A model for two tenants counts twice. Workers of further models are " +
			"refused with 409.",
	},
	{
		key: "limits.max_reservations", flag: "max-reservations", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxReservations, 1, math.MaxInt32) },
		help: "How many reservations may live. Further ones are refused with 503. Those of other replicas are not taken " +
			"beyond three quarters of it.",
	},
	{
		key: "limits.max_peers", flag: "max-peers", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxPeers, 1, maxPeers) },
		help: "How many replicas may be followed for their reservations. Further ones are refused with 409.",
	},
	{
		key: "limits.max_connections", flag: "max-connections", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxConnections, 1, maxConnections) },
		help: "How many connections all listeners may have together, Envoy's included. Beyond it an idle HTTP connection " +
			"is closed for a new one; if none is idle, the new one is refused. Over HTTP/2 the same number of requests " +
			"is served at a time. It is lowered to what the limit of open files allows.",
	},
	{
		key: "limits.max_connections_per_address", flag: "max-connections-per-address", hint: "N", slots: asFlag,
		bind: func(c *Config) value { return integer(&c.Limits.MaxConnectionsPerAddress, 0, maxConnections) },
		help: "How many connections, and with them requests over HTTP/2, one address may have (in IPv6, one /64 network). " +
			"0 is no limit. Set it where callers do not share an address, as they do behind a proxy.",
	},

	{
		key: "metrics.dynamo_aliases", flag: "metrics-dynamo-aliases",
		bind: func(c *Config) value { return boolean(&c.Metrics.DynamoAliases) },
		help: "Metrics are also shown under the names of Dynamo's KV indexer (dynamo_kvindexer_..., dynamo_kvrouter_...), " +
			"for dashboards that were made for it.",
	},

	{
		key: "traces.otlp_endpoint", flag: "otlp-endpoint", hint: "URL",
		bind: func(c *Config) value { return httpBase(&c.Traces.Endpoint) },
		help: "The base URL of an OpenTelemetry collector's OTLP receiver, which gets spans of requests, events, recovery " +
			"and snapshots. Port 4317 is asked by gRPC, others by HTTP. Without it OTEL_EXPORTER_OTLP_ENDPOINT counts; " +
			"without either nothing is traced. OpenTelemetry's other variables say the rest, such as " +
			"OTEL_TRACES_SAMPLER how many requests are traced: see docs/run/traces.md.",
	},

	{
		key: "log.level", flag: "log-level", hint: "LEVEL", slots: asVariable,
		bind: func(c *Config) value {
			return named(&c.Log.Level, zerolog.TraceLevel, zerolog.DebugLevel, zerolog.InfoLevel, zerolog.WarnLevel, zerolog.ErrorLevel)
		},
		help: "The least severe level that is logged: trace, debug, info, warn or error. info has the listeners, what " +
			"happens to event streams, publishers, peers and thresholds, and every 10 seconds the models that refused " +
			"requests. debug adds a line for each HTTP request and the faults of connections. trace adds nothing.",
	},
	{
		key: "log.format", flag: "log-format", hint: "FORMAT", slots: asVariable,
		bind: func(c *Config) value { return choice(&c.Log.Format, "json", "console") },
		help: "json is for collectors. console is for people, with colours on a terminal.",
	},
}
