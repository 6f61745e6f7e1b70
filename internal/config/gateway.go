package config

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/catalog"
)

// Gateway configures the endpoint picker for Envoy.
type Gateway struct {
	Port uint16 // of the gRPC listener; 0 is none
	// HealthPort is that of a listener in plain text with the health service alone; 0 is none.
	HealthPort uint16
	// Models maps model names of requests to scopes, each element NAME=MODEL@TENANT, see Names;
	// nil: every model of the tenant default has its own name.
	Models []string
	// Paths are further paths of engines that requests may name, each a path, a path that ends with a slash for all
	// below it, or "all".
	Paths      []string
	SelfSigned bool // without --tls-cert: use a certificate that is generated at the start
	MaxStreams int  // open ext_proc streams, one for each request under way
	MaxBody    int  // of a request, in bytes
	// PickTimeout is how long a request may take to be tokenized and to wait in the queue.
	PickTimeout time.Duration
	Lease       time.Duration // of the picker's reservations, renewed while their streams live
	ReserveFor  time.Duration // how long what is reserved for a later request waits for it; 0: nothing is reserved
	// DrainDelay is how long the listener still accepts requests after the signal to stop, with
	// health NOT_SERVING. DrainTimeout is how long streams under way may then take to end.
	DrainDelay, DrainTimeout time.Duration
	SaltTag                  bool // engines get cache salts with Dynamo's tag
	// MetadataPrefix is the prefix of header names that carry metadata of a request, in lower
	// case.
	MetadataPrefix string
	// SessionHeaders name sessions before the headers of known clients, each as NAME or NAME/PARENT.
	SessionHeaders []string
	// SessionAffinity says how firmly the sessions of requests stay together: SessionsSoft, SessionsHard or
	// SessionsOff.
	SessionAffinity string
	// MaxUncachedTokens and MaxUncachedShare say which prompts the worker that decodes prefills itself, see
	// selection.Conditional; nil, both of them: none.
	MaxUncachedTokens *uint64
	MaxUncachedShare  *float64
	Tokenizer         Tokenizer
}

// How firmly sessions through the gateway and the proxy stay together. Groups of sub-agents stay together with
// SessionsOff, too.
const (
	SessionsSoft = "soft"
	SessionsHard = "hard"
	SessionsOff  = "off"

	// DefaultSessions is SessionsOff: the index knows where a session's blocks are, and in the comparison of
	// rules (docs/figures/policies-compared.md) sessions find no more than that in caches.
	DefaultSessions = SessionsOff
)

// HomeTTL is how long the rank of a soft session or of a group is known after its last request.
const HomeTTL = time.Hour

// KeepsHomes reports whether ranks of soft sessions or of groups are known.
func (c Config) KeepsHomes() bool {
	return c.Fronts() && (c.Gateway.SessionAffinity == SessionsSoft || c.Gateway.SessionAffinity == SessionsOff && c.FrontGroups())
}

// FrontGroups reports whether sub-agents whose requests come through the gateway or the proxy form groups.
func (c Config) FrontGroups() bool { return c.Selections.Groups == nil || *c.Selections.Groups }

// Tokenizer configures the source of token ids.
type Tokenizer struct {
	URL       string // base URL, or TokenizerWorker
	Protocol  string // one of the Protocol constants
	OnFailure string // OnFailureFail or OnFailureLoadOnly
	Timeout   time.Duration
	MaxAnswer int // bytes
}

// TokenizerWorker as Tokenizer.URL asks a live engine of the request's model.
const TokenizerWorker = "worker"

// Fronts reports whether there is a port for requests to engines: the gateway's or the proxy's.
func (c Config) Fronts() bool { return c.Gateway.Port != 0 || c.Proxy.Port != 0 }

// Tokenizes reports whether there is a tokenizer: for requests to engines, or of its own.
func (c Config) Tokenizes() bool {
	return c.Gateway.Tokenizer.Protocol != ProtocolNone && (c.Fronts() || c.Gateway.Tokenizer.URL != TokenizerWorker)
}

// The protocols of tokenizers. With ProtocolNone no tokenizer is asked: load alone decides.
const (
	ProtocolVLLMRender     = "vllm-render"
	ProtocolSGLangRenderer = "sglang-renderer"
	ProtocolVLLMTokenize   = "vllm-tokenize"
	ProtocolNone           = "none"
)

// How to treat a request that could not be tokenized: refuse it, or place it by load alone.
const (
	OnFailureFail     = "fail"
	OnFailureLoadOnly = "load-only"
)

func defaultGateway() Gateway {
	return Gateway{
		MaxStreams: 1024, MaxBody: 16 << 20, PickTimeout: time.Minute, Lease: 30 * time.Second, ReserveFor: 10 * time.Second,
		DrainDelay: 5 * time.Second, DrainTimeout: 25 * time.Second,
		MetadataPrefix:  "x-dynamo-meta-",
		SessionAffinity: DefaultSessions,
		Tokenizer: Tokenizer{
			URL: TokenizerWorker, Protocol: ProtocolVLLMTokenize, OnFailure: OnFailureFail, Timeout: 5 * time.Second, MaxAnswer: 16 << 20,
		},
	}
}

// Names returns the scope of each model name of requests; nil: no names are configured.
func (g Gateway) Names() map[string]catalog.Scope {
	if g.Models == nil {
		return nil
	}
	names := make(map[string]catalog.Scope, len(g.Models))
	for _, m := range g.Models {
		name, sc, _ := parseGatewayModel(m) // they were checked when they were read
		names[name] = sc
	}
	return names
}

// Serves reports which scopes a port for requests to engines can name, nil: there is no such port. Without
// configured names these are all of the tenant default.
func (c Config) Serves() *policies.Served {
	if !c.Fronts() {
		return nil
	}
	g := c.Gateway
	if g.Models == nil {
		return policies.NewServed(func(sc catalog.Scope) bool { return sc.Tenant == catalog.DefaultName })
	}
	named := make(map[catalog.Scope]bool, len(g.Models))
	for _, sc := range g.Names() {
		named[sc] = true
	}
	return policies.NewServed(func(sc catalog.Scope) bool { return named[sc] })
}

var errGatewayModel = errors.New("want NAME=MODEL, NAME=MODEL@TENANT or MODEL, with names of at most 1024 bytes")

// gatewayModel checks an element of Models and returns it with all its parts spelled out.
func gatewayModel(s string) (string, error) {
	name, sc, err := parseGatewayModel(s)
	if err != nil {
		return "", fmt.Errorf("%q: %w", s, err)
	}
	return name + "=" + sc.Model + "@" + sc.Tenant, nil
}

func parseGatewayModel(s string) (name string, sc catalog.Scope, err error) {
	name, model, given := strings.Cut(s, "=")
	if !given {
		model = s
	}
	sc = catalog.Scope{Model: model, Tenant: catalog.DefaultName}
	if at := strings.LastIndexByte(model, '@'); at >= 0 {
		sc.Model, sc.Tenant = model[:at], model[at+1:]
	}
	if !given {
		name = sc.Model
	}
	for _, part := range []string{name, sc.Model, sc.Tenant} {
		if part == "" || len(part) > catalog.MaxName {
			return "", catalog.Scope{}, errGatewayModel
		}
	}
	return name, sc, nil
}

// headerPrefix checks a prefix of header names.
func headerPrefix(s string) (string, error) {
	s = strings.ToLower(s)
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return "", fmt.Errorf("%q cannot begin the name of a header", s)
		}
	}
	return s, nil
}

// Upper bounds of the gateway's settings. Higher values are surely mistakes.
const (
	maxGatewayStreams = 1 << 20
	maxGatewayBody    = 1 << 30
)

var gatewaySettings = []option{
	{
		key: "gateway.port", flag: "gateway-port", hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Gateway.Port, 0, math.MaxUint16) },
		help: "The port of the gRPC listener for Envoy's ext_proc filter, with its health service. 9002 is usual; 0 opens " +
			"none. It speaks TLS with --tls-cert or --gateway-self-signed, and otherwise HTTP/2 without TLS (h2c).",
	},
	{
		key: "gateway.health_port", flag: "gateway-health-port", hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Gateway.HealthPort, 0, math.MaxUint16) },
		help: "The port of a gRPC listener without TLS that has the gateway's health service alone. 9003 is usual; 0 " +
			"opens none. Set it for probes of Kubernetes, which speak no TLS, and for load balancers that check another " +
			"port.",
	},
	{
		key: "gateway.models", flag: "gateway-model", env: []string{"SELECT_SERVICE_GATEWAY_MODELS", "DYN_MODEL_NAME"}, hint: "NAME=MODEL[@TENANT]", repeats: true,
		bind: func(c *Config) value { return list(&c.Gateway.Models, gatewayModel) },
		help: "The name of a model in requests through the gateway, and the model and tenant of its workers. It may be " +
			"given several times; requests for other names are answered with 404. Without it every model of the tenant " +
			"default is served under its own name.",
	},
	{
		key: "gateway.allow_paths", flag: "gateway-allow-paths", hint: "PATH", repeats: true,
		bind: func(c *Config) value { return list(&c.Gateway.Paths, enginePath) },
		help: "A further path of engines that requests through the gateway or the proxy may name; /path/ allows all paths " +
			"below it. It may be given several times. Without it requests may name the routes of OpenAI's and " +
			"Anthropic's APIs and engines' own routes for prompts. Engines' other routes, such as /flush_cache, stop or " +
			"change them. all refuses no path.",
	},
	{
		key: "gateway.session_headers", flag: "gateway-session-headers", hint: "NAME[/PARENT]", repeats: true,
		bind: func(c *Config) value { return sessionHeaders(&c.Gateway.SessionHeaders) },
		help: "A header that names the session of a request through the gateway or the proxy, and a header that names the " +
			"session that has started it. It goes before the headers of known clients, and may be given up to 8 times.",
	},
	{
		key: keySessions, flag: "gateway-session-affinity", hint: "soft|hard|off",
		bind: func(c *Config) value {
			return choice(&c.Gateway.SessionAffinity, SessionsSoft, SessionsHard, SessionsOff)
		},
		help: "How firmly the sessions of requests through the gateway and the proxy stay on their ranks. off places each " +
			"request by the caches and the loads. soft keeps a session where it was until another rank costs less by " +
			"more than the move, and forgets it after an hour without a request. hard binds it for " +
			"--session-affinity-ttl-secs. Set soft where no KV events tell what is cached.",
	},
	{
		key: "gateway.conditional_max_uncached_tokens", flag: "gateway-conditional-max-uncached-tokens", hint: "N|none",
		bind: func(c *Config) value { return count(&c.Gateway.MaxUncachedTokens) },
		help: "Where prefill and decode are apart, the worker that decodes prefills a prompt itself if it has to compute " +
			"fewer tokens than this. Dynamo's figure is 2048. With none, and no share either, every prompt is " +
			"prefilled apart.",
	},
	{
		key: "gateway.conditional_max_uncached_share", flag: "gateway-conditional-max-uncached-share", hint: "0..1|none",
		bind: func(c *Config) value { return share(&c.Gateway.MaxUncachedShare) },
		help: "The same by the share of the prompt that it has to compute; with both, both must hold. Dynamo's figure is 0.7.",
	},
	{
		key: "gateway.self_signed", flag: "gateway-self-signed", also: []string{"DYN_SECURE_SERVING"},
		bind: func(c *Config) value { return boolean(&c.Gateway.SelfSigned) },
		help: "Without --tls-cert the gateway's listener speaks TLS, with a certificate for localhost that is made at " +
			"every start. Set it for gateways that want TLS and do not verify it.",
	},
	{
		key: "gateway.max_streams", flag: "gateway-max-streams", also: []string{"DYN_EPP_MAX_INFLIGHT_REQUESTS"}, hint: "N",
		bind: func(c *Config) value { return integer(&c.Gateway.MaxStreams, 1, maxGatewayStreams) },
		help: "How many requests may be under way through the gateway, answers being streamed included. Further ones are " +
			"answered with 503 and Retry-After. Each takes about 100 KiB at its peak, and what its body needs.",
	},
	{
		key: "gateway.max_body", flag: "gateway-max-body", hint: "BYTES",
		bind: func(c *Config) value { return integer(&c.Gateway.MaxBody, 1, maxGatewayBody) },
		help: "The longest body of a request through the gateway, in bytes. A longer one is answered with 413.",
	},
	{
		key: "gateway.pick_timeout", flag: "gateway-pick-timeout", hint: "DURATION",
		bind: func(c *Config) value { return duration.of(&c.Gateway.PickTimeout) },
		help: "How long a request through the gateway may wait for its worker, tokenization and wait queue together. It " +
			"is then answered with 429. The message_timeout of Envoy does not count here.",
	},
	{
		key: "gateway.lease", flag: "gateway-lease", hint: "DURATION",
		bind: func(c *Config) value { return duration.of(&c.Gateway.Lease) },
		help: "The lease of the gateway's bookings. It is renewed three times in this time while their requests are under " +
			"way. When a replica dies, its bookings end at the others a little later than this.",
	},
	{
		key: "gateway.reserve_for", flag: "gateway-reserve-for", hint: "DURATION",
		bind: func(c *Config) value { return delay.of(&c.Gateway.ReserveFor) },
		help: "How long what a request with Prefer: reserve-endpoint has reserved waits for the request that follows. Set it " +
			"above the time between the two. 0 refuses such requests.",
	},
	{
		env:  []string{"DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS"},
		bind: func(c *Config) value { return wholeSeconds(0, maxDuration).of(&c.Gateway.DrainDelay) },
		help: "The same as SELECT_SERVICE_GATEWAY_DRAIN_DELAY, in whole seconds.",
	},
	{
		key: "gateway.drain_delay", flag: "gateway-drain-delay", hint: "DURATION",
		bind: func(c *Config) value { return delay.of(&c.Gateway.DrainDelay) },
		help: "With a gateway or proxy port, how long the process goes on after the signal to stop, with health " +
			"NOT_SERVING, so that gateways learn of it. 0 stops at once.",
	},
	{
		key: "gateway.drain_timeout", flag: "gateway-drain-timeout", hint: "DURATION",
		bind: func(c *Config) value { return duration.of(&c.Gateway.DrainTimeout) },
		help: "How long requests under way through the gateway may then take to end. Set it to the longest answer that " +
			"should not be cut, and set the grace of the process manager above the sum of both.",
	},
	{
		key: "gateway.metadata_prefix", env: []string{"DYN_METADATA_HEADER"}, hint: "PREFIX",
		bind: func(c *Config) value { return checkedText(&c.Gateway.MetadataPrefix, headerPrefix) },
		help: "A request through the gateway or the proxy names its class in the wait queue by the header policy-class " +
			"with this prefix.",
	},
	{
		key: "gateway.salt_tag", flag: "gateway-salt-tag",
		bind: func(c *Config) value { return boolean(&c.Gateway.SaltTag) },
		help: "Engines get cache salts as Dynamo writes them, with \"dynamo-cache-salt:\" before them. Set it where workers " +
			"of Dynamo share caches with these. The tag takes 18 of the 128 characters that vLLM allows.",
	},
	{
		key: "gateway.tokenizer_url", flag: "tokenizer-url", also: []string{"DYN_EPP_TOKENIZER_SERVICE_URL"}, hint: "URL|worker",
		bind: func(c *Config) value { return checkedText(&c.Gateway.Tokenizer.URL, tokenizerURL) },
		help: "The base URL of the tokenizer service that gives the gateway and POST /tokenize token ids. worker asks a " +
			"live engine of the request's model; it needs a gateway or proxy port.",
	},
	{
		key: "gateway.tokenizer_protocol", flag: "tokenizer-protocol", also: []string{"DYN_EPP_TOKENIZER_PROTOCOL"}, hint: "NAME",
		bind: func(c *Config) value {
			return choice(&c.Gateway.Tokenizer.Protocol, ProtocolVLLMRender, ProtocolSGLangRenderer, ProtocolVLLMTokenize, ProtocolNone)
		},
		help: "The protocol of the tokenizer: vllm-render, sglang-renderer, vllm-tokenize (which every vLLM engine has), " +
			"or none. With none nobody is asked, and load alone decides.",
	},
	{
		key: "gateway.tokenizer_on_failure", flag: "tokenizer-on-failure", hint: "fail|load-only",
		bind: func(c *Config) value { return choice(&c.Gateway.Tokenizer.OnFailure, OnFailureFail, OnFailureLoadOnly) },
		help: "What happens to requests while the tokenizer fails. fail answers them with 502, 503 or 504; load-only " +
			"places them by load, without the caches.",
	},
	{
		env: []string{"DYN_EPP_TOKENIZATION_TIMEOUT_MS"},
		bind: func(c *Config) value {
			return durations{unit: time.Millisecond, whole: true, low: time.Millisecond, high: maxDuration}.of(&c.Gateway.Tokenizer.Timeout)
		},
		help: "The same as SELECT_SERVICE_TOKENIZER_TIMEOUT, in milliseconds.",
	},
	{
		key: "gateway.tokenizer_timeout", flag: "tokenizer-timeout", hint: "DURATION",
		bind: func(c *Config) value { return duration.of(&c.Gateway.Tokenizer.Timeout) },
		help: "How long the tokenizer may take for one request.",
	},
	{
		key: "gateway.tokenizer_max_answer", env: []string{"DYN_EPP_TOKENIZER_MAX_RESPONSE_BYTES"}, hint: "BYTES",
		bind: func(c *Config) value { return integer(&c.Gateway.Tokenizer.MaxAnswer, 1, maxGatewayBody) },
		help: "The longest answer that is read from the tokenizer, in bytes.",
	},
}

// tokenizerURL accepts a base URL or TokenizerWorker.
func tokenizerURL(s string) (string, error) {
	if s == TokenizerWorker {
		return s, nil
	}
	return httpURL(s)
}

// sessionHeaders are names of sessions' headers.
func sessionHeaders(field *[]string) value {
	v := separated(field, ",", func(s string) (string, error) {
		_, err := identity.New(s)
		return s, err
	})
	v.parse = checked(v.parse, func(names []string) error {
		_, err := identity.New(names...) // their number
		return err
	})
	return v
}
