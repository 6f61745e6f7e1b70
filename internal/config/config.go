// Package config turns flags, environment, file and defaults into one checked
// Config, or into one error that names every bad setting by the name under
// which it was given.
//
// A flag goes before the environment, the environment before the file, the file
// before the default. An empty text is "not given" in every source: launch
// templates leave flags and variables empty. A bad value is refused even where a
// stronger source overrides it. The table in option.go is the only list of
// settings: flags, variables, file keys, --help and --print-config follow it.
package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/select-service/select-service/pkg/admission"
	"github.com/select-service/select-service/pkg/selector"
)

// Config is the effective configuration of the service.
type Config struct {
	// Action is what the command line asks for; Run unless a flag says otherwise.
	Action Action

	Server   Server
	KVEvents KVEvents
	// Router holds the weights of the cost function, the softmax temperature
	// and whether prefill tokens are tracked; requests may override some.
	Router   selector.Weights
	Queue    Queue
	Replicas Replicas
	Log      Log

	// notes are remarks about where values came from; see Warnings.
	notes []string
}

// Action is what the process is to do.
type Action uint8

// The actions, weakest first: where several flags are given the last one here wins.
const (
	Run         Action = iota // serve
	PrintConfig               // write the effective configuration as YAML
	CheckConfig               // check the configuration only
	Version                   // write the version
	Help                      // write the help text
)

// Server is the HTTP listener.
type Server struct {
	Listen string // IP address or host name, without brackets
	Port   uint16 // 0 takes a free port
}

// Address is the address to listen on, host:port.
func (s Server) Address() string {
	return net.JoinHostPort(s.Listen, strconv.Itoa(int(s.Port)))
}

// KVEvents is the intake of KV cache events.
type KVEvents struct {
	Enabled bool // off: no listeners, no event endpoints needed, overlap always 0
	Threads int  // workers that decode events and apply them to the index, 1..MaxThreads
}

// Queue is the wait queue for requests that find every eligible rank busy.
type Queue struct {
	// Threshold times max_num_batched_tokens is the prefill load above which a
	// rank is busy; nil means that no request waits (decision D5).
	Threshold *float64
	// PolicyFile is the path of the policy file, empty for none.
	PolicyFile string
	// Policy is the content of PolicyFile, nil for none. It replaces Threshold.
	Policy *admission.PolicyFile
	// OverlapRefreshAfter is the wait after which a request's cache overlap is
	// looked up again when it is admitted; 0 means never.
	OverlapRefreshAfter time.Duration
}

// Enabled reports whether requests can wait at all.
func (q Queue) Enabled() bool { return q.Threshold != nil || q.Policy != nil }

// Replicas names the other selectors.
type Replicas struct {
	IndexerPeers []string // URLs whose /dump is read at start, without trailing slash
	SyncPort     uint16   // local port for lifecycle events, 0 for none
	SyncPeers    []string // ZMQ endpoints of the peers' lifecycle events, no duplicates
}

func (r Replicas) configured() bool {
	return len(r.IndexerPeers) > 0 || r.SyncPort != 0 || len(r.SyncPeers) > 0
}

// Log is the output of the log, on standard error.
type Log struct {
	Level  string // trace, debug, info, warn or error
	Format string // json or console
}

// MaxThreads bounds KVEvents.Threads: more workers than any host has cores
// would only cost memory.
const MaxThreads = 1024

// Default is the configuration without flags, environment and file. The weights
// are those of dynamo-kv-router 1.3.1; its queue threshold of 16 is not taken
// over (decision D5).
func Default() Config {
	return Config{
		Server:   Server{Listen: "0.0.0.0", Port: 8092},
		KVEvents: KVEvents{Enabled: true, Threads: 4},
		Router:   selector.DefaultWeights(),
		Queue:    Queue{OverlapRefreshAfter: 10 * time.Second},
		Log:      Log{Level: "info", Format: "json"},
	}
}

var errPeersWithoutPort = errors.New("--replica-sync-peers requires --replica-sync-port")

// Validate checks every value and reports all faults at once, each by its file
// key. What Load returns is valid already.
func (c Config) Validate() error {
	var faults []error
	for _, o := range options {
		if o.key == "" {
			continue
		}
		if err := o.bind(&c).check(); err != nil {
			faults = append(faults, named(o.key, err)...)
		}
	}
	if err := c.Replicas.consistent(); err != nil {
		faults = append(faults, fmt.Errorf("replicas.sync_peers: %w", err))
	}
	return invalid(faults)
}

// consistent checks what no single setting can know (decision D19).
func (r Replicas) consistent() error {
	if len(r.SyncPeers) > 0 && r.SyncPort == 0 {
		return errPeersWithoutPort
	}
	return nil
}

// Warnings lists what the operator should know although the configuration is
// valid: settings without effect and deprecated names.
func (c Config) Warnings() []string {
	warnings := c.notes[:len(c.notes):len(c.notes)]
	if c.Replicas.configured() {
		warnings = append(warnings, "indexer peers and replica synchronisation are not part of this version: "+
			"--indexer-peers, --replica-sync-port and --replica-sync-peers were checked and have no effect")
	}
	return warnings
}
