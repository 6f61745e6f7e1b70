package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/pending"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// Config is the effective configuration of the service.
type Config struct {
	// Action is what the command line asks for; Run if no flag says otherwise.
	Action Action
	// SlotsOnly is the subcommand "slots": the slot tracker alone, on
	// Server.SlotsPort, without the selection service's listener.
	SlotsOnly bool

	Server  Server
	TLS     TLS
	Gateway Gateway
	Proxy   Proxy
	Workers Workers
	// Kubernetes finds workers as pods.
	Kubernetes Kubernetes
	// Fleet is where the replicas of a fleet meet over NATS.
	Fleet    Fleet
	KVEvents KVEvents
	// Router holds the weights of the cost function, the softmax temperature
	// and whether prefill tokens are tracked; requests may override some.
	Router          selector.Weights
	WorkerSelection WorkerSelection
	Queue           Queue
	Selections      Selections
	Reservations    Reservations
	Engines         Engines
	Overload        Overload
	Replicas        Replicas
	Access          Access
	Data            Data
	Limits          Limits
	Metrics         Metrics
	Traces          Traces
	Log             Log

	// policyText has the values of the policy file, empty for none.
	policyText string
	// notes are the remarks that Warnings returns.
	notes []string
}

// Action is what the process should do.
type Action uint8

// The actions, weakest first: where several flags are given the last one here wins.
// Those from Version on need no valid configuration.
const (
	Run         Action = iota // serve
	PrintConfig               // write the effective configuration as YAML
	CheckConfig               // check the configuration only
	Version                   // write the version
	Help                      // write the help text of one screen
	HelpAll                   // write the help text with every option
)

// Server is what the HTTP listeners need.
type Server struct {
	// Listen has the addresses to listen at: at most one IP address (without brackets) or host
	// name for all HTTP listeners, and any number of unix sockets (unix:///path) for the
	// selection service, or for the slot tracker if it runs alone.
	Listen    []string
	Port      uint16 // of the selection service; 0 takes a free port
	SlotsPort uint16 // of the slot tracker; 0 is no listener of its own
	// ConductorPort is the port of the Conductor API; 0 is no listener of its own.
	ConductorPort uint16
	// AdminListen and DebugListen are the addresses, host:port, of separate listeners for the
	// operators' routes and for profiles of the process; empty: none.
	AdminListen, DebugListen string
	// UI is the path below which a proxy shows the service with the operators' page: "/", or one
	// without trailing slash; empty: there is no page.
	UI string
	// Contract decides the behaviour of the process and the dialect of the routes without a
	// version prefix.
	Contract contract.Version
	// AdvertiseURL is the base URL under which replicas reach this one, without
	// trailing slash; empty for the listener's own address.
	AdvertiseURL string
}

// Host is the address of the HTTP listeners; empty if there are only unix sockets.
func (s Server) Host() string {
	for _, at := range s.Listen {
		if !strings.HasPrefix(at, unixScheme) {
			return at
		}
	}
	return ""
}

// Sockets are the paths of the unix sockets.
func (s Server) Sockets() (paths []string) {
	for _, at := range s.Listen {
		if path, ok := strings.CutPrefix(at, unixScheme); ok {
			paths = append(paths, path)
		}
	}
	return paths
}

// Address is the address of the selection service's listener, host:port.
func (s Server) Address() string { return s.at(s.Port) }

// SlotsAddress is the address of the slot tracker's listener, host:port.
func (s Server) SlotsAddress() string { return s.at(s.SlotsPort) }

// ConductorAddress is the address of the Conductor API's listener, host:port.
func (s Server) ConductorAddress() string { return s.at(s.ConductorPort) }

func (s Server) at(port uint16) string {
	return net.JoinHostPort(s.Host(), strconv.Itoa(int(port)))
}

// TLS names the PEM files with the certificates of all HTTP listeners and of reads from other
// replicas; empty: none. The files are followed while the service runs.
type TLS struct {
	Cert, Key string // the listeners' certificate; without it they speak plain HTTP
	ClientCA  string // certificate authorities of callers; if set, callers must present a certificate

	PeerCert, PeerKey string // client certificate for reads from other replicas
	PeerCA            string // certificate authorities of replicas; empty: the system's

	EngineCert, EngineKey string // client certificate for reads from engines
	EngineCA              string // certificate authorities of engines; empty: the system's
}

// Workers says where the catalog comes from.
type Workers struct {
	// File is the path of the file with the full set of workers, which is followed
	// while the service runs; empty for none.
	File string
	// Engines are URLs of engines that describe themselves, see enginelist.Check.
	Engines []string
}

// The policies that KVEvents.ApproximatePolicy names.
const (
	PolicyTTL = "ttl"
	PolicyLRU = "lru"
)

// KVEvents is the intake of KV cache events.
type KVEvents struct {
	Enabled bool // off: no listeners, no event endpoints needed, overlap always 0
	Threads int  // workers that decode events and apply them to the index, 1..MaxThreads
	// ApproximateTTL is how long a prompt that was sent to a rank is assumed to be
	// cached there if there are no events (contract 1.6).
	ApproximateTTL time.Duration
	// ApproximatePolicy is how the assumption ends: PolicyTTL after ApproximateTTL, PolicyLRU
	// by the rank's capacity if it is known.
	ApproximatePolicy string
	// PredictedTTL is how long a prompt that was sent to a rank is assumed to be cached there,
	// in addition to what events report; nil: no predictions.
	PredictedTTL *time.Duration
	// HybridExact: a cached prefix ends where all attention groups of an engine can serve it,
	// not just the main group.
	HybridExact bool
}

// Queue configures the wait queue for requests that find every eligible rank busy.
type Queue struct {
	// Config says which requests wait, by default none (decision D5). Its File is the content of PolicyFile.
	admission.Config
	// PolicyFile is the path of the policy file, empty for none.
	PolicyFile string
	// OverlapRefreshAfter is the wait after which a request's cache overlap is
	// looked up again when it is admitted; 0 means never.
	OverlapRefreshAfter time.Duration
}

// WorkerSelection says which policies choose the ranks of requests.
type WorkerSelection struct {
	// Name is the instance of a policy for all models; it takes precedence over those that the
	// policy file assigns. Empty: none.
	Name string
	// Type is the type of a policy with default parameters that decides where no instance is named. Empty: none.
	Type string
	// Policies has the resulting policies, set by Load; nil: the built-in one alone.
	Policies *policies.Table
}

// Selections bounds the state that is kept between requests of the 1.6 dialect.
type Selections struct {
	// SessionTTL is how long a session without reservations stays bound to its
	// rank; 0 switches session affinity off.
	SessionTTL time.Duration
	// Groups: sessions that one session has started stay together; nil: those of the gateway and the proxy do,
	// hard ones of the HTTP API do not.
	Groups *bool
	// Pending bounds the pending selections: those that wait for their reservation.
	Pending pending.Limits
	// DecodeBusy and PrefillBusy are the shares of total_kv_blocks and of
	// max_num_batched_tokens above which an answer says "busy"; nil: answers do not say it.
	DecodeBusy, PrefillBusy *float64
	// RequestTargets: what requests want of their times counts.
	RequestTargets bool
	// Fetch says when engines are told to fetch KV caches.
	Fetch selector.FetchMode
	// DecisionBytes is the approximate memory for recent decisions, in bytes; 0: none are kept.
	DecisionBytes int
}

// Reservations configures the lifetime of reservations.
type Reservations struct {
	// Lifetime of a reservation without a lease, in whole seconds.
	Lifetime time.Duration
}

// Engines configures what follows from what engines say of themselves.
type Engines struct {
	// TokenFile names the file with the token for reads of the engines' metrics; empty: none.
	TokenFile string
	// StalledAfter is how long an engine with unfinished work may give no sign of life; 0: no limit.
	StalledAfter time.Duration
	// WarmupShare is the share of requests, 0 to 1, that new or emptied ranks get; nil: none.
	WarmupShare *float64
}

// Overload configures the refusal of requests while every eligible worker is busy.
type Overload struct {
	// Thresholds has the thresholds of every model until /busy_threshold changes them.
	Thresholds overload.Thresholds
	// RetryAfter is the Retry-After header of refused requests, in whole seconds up to
	// a day. 0 sends no such header; nil: see GatewayRetryAfter.
	RetryAfter *time.Duration
}

// GatewayRetryAfter is the Retry-After header of the gateway and the proxy: RetryAfter, or else the
// default of Dynamo's endpoint picker (DYN_EPP_SHED_RETRY_AFTER_SECS). The HTTP API then sends none.
func (o Overload) GatewayRetryAfter() time.Duration {
	if o.RetryAfter == nil {
		return time.Second
	}
	return *o.RetryAfter
}

// maxRetryAfter bounds Overload.RetryAfter. A higher value is surely a mistake. maxSessionTTL bounds
// Selections.SessionTTL, as in dynamo-kv-router 1.6.1.
const (
	maxRetryAfter = 24 * time.Hour
	maxSessionTTL = 31_536_000 * time.Second
)

// Replicas names the other replicas and says how to work with them.
type Replicas struct {
	IndexerPeers     []string      // URLs whose /dump is read at start, without trailing slash
	RecoveryDeadline time.Duration // how long readiness waits for that

	// PeerTokenFile names the file with the token for reads from other replicas; empty: none.
	PeerTokenFile string

	SyncPort      uint16 // port on which reservations are published, 0 for none
	SyncBind      string // ZMQ endpoint to bind instead of SyncPort, empty for none
	SyncAdvertise string // the endpoint under which replicas reach it, empty if not given
	// Hosts are further hosts from which snapshots may be read, besides the hosts of the peers.
	Hosts []string

	SyncPeers []string // ZMQ endpoints of the peers' reservations, no duplicates
	// KubePeerService is the Service whose endpoints are the replicas; empty: none.
	KubePeerService string
}

// Publish returns the ZMQ endpoint to bind for this replica's own reservations, empty for none:
// SyncBind, or one made of SyncPort.
func (r Replicas) Publish() string {
	if r.SyncBind == "" && r.SyncPort != 0 {
		return fmt.Sprintf("tcp://*:%d", r.SyncPort)
	}
	return r.SyncBind
}

// Access says who may call the service, and which endpoints it may connect to.
type Access struct {
	// TokensFile names the tokens file, see package access; empty: anyone may do everything.
	TokensFile string
	// AllowedHosts are the names under which the HTTP listeners may be addressed, see
	// access.NewHosts.
	AllowedHosts []string
	// AllowEndpoints are rules for the ZMQ endpoints of engines and replicas, see
	// catalog.ParseEndpointRule; nil: all of TCP. With AllowIPC those of ipc, too.
	AllowEndpoints []string
	AllowIPC       bool
}

// Endpoints returns the policy for the ZMQ endpoints of engines and replicas.
func (a Access) Endpoints() catalog.EndpointPolicy {
	p := catalog.EndpointPolicy{IPC: a.AllowIPC}
	for _, s := range a.AllowEndpoints {
		rule, _ := catalog.ParseEndpointRule(s) // they were checked when they were read
		p.Allowed = append(p.Allowed, rule)
	}
	return p
}

// Limits bounds the resources that clients, engines and replicas can use.
type Limits struct {
	// MaxMemory is the memory budget in bytes; 0: derived from the cgroup or the machine.
	MaxMemory int64
	// ScanCache bounds the memory for token ids of prompts that were read, in bytes; 0: none are kept.
	ScanCache int64
	// Catalog bounds the registered workers, their ranks and streams, and the scopes with workers.
	Catalog catalog.Limits
	// MaxReservations bounds the live reservations.
	MaxReservations int
	// MaxConnections bounds the connections of all listeners together, and
	// MaxConnectionsPerAddress those of one address; 0 is no bound of the latter.
	MaxConnections, MaxConnectionsPerAddress int
	// MaxPeers bounds the replicas whose reservations are followed.
	MaxPeers int
}

// maxConnections bounds Limits.MaxConnections. A higher value is surely a mistake.
const maxConnections = 1 << 20

// maxPeers does the same for peers.
const maxPeers = 1 << 10

// minMemory is the least Limits.MaxMemory; with less the service could not serve.
const minMemory = 64 << 20

// Data configures the state on disk.
type Data struct {
	Dir              string // empty for none
	SnapshotInterval time.Duration
}

// Metrics configures GET /metrics.
type Metrics struct {
	DynamoAliases bool // also show numbers under the names of Dynamo's KV indexer
}

// Traces configures the traces of requests.
type Traces struct {
	Endpoint string // base URL of an OTLP receiver; empty: that of OpenTelemetry's own variables
}

// Log is the output of the log, on standard error.
type Log struct {
	Level  zerolog.Level
	Format string // json or console
}

// MaxThreads bounds KVEvents.Threads: more workers than any host has cores
// would only cost memory.
const MaxThreads = 1024

// Default is the configuration without flags, environment and file. The weights are those of
// dynamo-kv-router 1.3.1, but its queue threshold of 16 is not adopted (decision D5). Settings
// that only 1.6 has are as in dynamo-kv-router 1.6.1.
func Default() Config {
	return Config{
		Server:  Server{Listen: []string{"0.0.0.0"}, Port: 8092, UI: "/", Contract: contract.V13},
		Gateway: defaultGateway(), Proxy: defaultProxy(), Kubernetes: defaultKubernetes(),
		Fleet: Fleet{Name: "default", Bookings: BookingsNATS},
		KVEvents: KVEvents{
			Enabled: true, Threads: 4, ApproximateTTL: 120 * time.Second, ApproximatePolicy: PolicyTTL, HybridExact: true,
		},
		Router: selector.DefaultWeights(),
		Queue:  Queue{OverlapRefreshAfter: 10 * time.Second},
		Selections: Selections{
			Pending:       pending.Limits{TTL: 120 * time.Second, Entries: 4096, Bytes: 256 << 20},
			DecisionBytes: 4 << 20, RequestTargets: true,
		},
		Reservations: Reservations{Lifetime: 300 * time.Second},
		Engines:      Engines{StalledAfter: 3 * time.Second},
		Replicas:     Replicas{RecoveryDeadline: 30 * time.Second},
		Limits: Limits{
			ScanCache:      64 << 20,
			MaxConnections: 8192, Catalog: catalog.Limits{Workers: 16_384, Ranks: 65_536, Streams: 16_384, Scopes: 1024},
			MaxPeers: 64, MaxReservations: 4_194_304,
		},
		Data: Data{SnapshotInterval: time.Minute},
		Log:  Log{Level: zerolog.InfoLevel, Format: "json"},
	}
}

// DefaultSlots is Default for the subcommand "slots".
func DefaultSlots() Config {
	conf := Default()
	conf.SlotsOnly = true
	conf.Server.SlotsPort = 8091
	return conf
}

// Warnings lists remarks on a valid configuration: settings without effect, and deprecated names.
func (c Config) Warnings() []string { return c.notes }
