package config_test

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/selection/contract"
)

// TestReplicaSync: the two spellings of one PUB socket, and what a peer list
// becomes.
func TestReplicaSync(t *testing.T) {
	tests := map[string]struct {
		args    []string
		want    func(*config.Config)
		publish string
	}{
		"none": {nil, func(*config.Config) {}, ""},
		"duplicates collapse": {
			[]string{"--replica-sync-port=9092", "--replica-sync-peers", "tcp://b:9092,tcp://[::1]:5,tcp://b:9092"},
			func(c *config.Config) {
				c.Replicas.SyncPort = 9092
				c.Replicas.SyncPeers = []string{"tcp://b:9092", "tcp://[::1]:5"}
			},
			"tcp://*:9092",
		},
		"the slot tracker's spelling": {
			[]string{"--replica-sync-bind=tcp://10.0.0.1:9092", "--replica-sync-advertise=tcp://a:9092", "--replica-sync-peers=tcp://b:9092"},
			func(c *config.Config) {
				c.Replicas.SyncBind, c.Replicas.SyncAdvertise = "tcp://10.0.0.1:9092", "tcp://a:9092"
				c.Replicas.SyncPeers = []string{"tcp://b:9092"}
			},
			"tcp://10.0.0.1:9092",
		},
		"both spellings of the same": {
			[]string{"--replica-sync-port=9092", "--replica-sync-bind=tcp://*:9092", "--replica-sync-advertise=tcp://a:9092"},
			func(c *config.Config) {
				c.Replicas.SyncPort, c.Replicas.SyncBind, c.Replicas.SyncAdvertise = 9092, "tcp://*:9092", "tcp://a:9092"
			},
			"tcp://*:9092",
		},
		"an ipc endpoint has no port": {
			[]string{"--replica-sync-bind=ipc:///run/sync", "--port=0"},
			func(c *config.Config) { c.Replicas.SyncBind, c.Server.Port = "ipc:///run/sync", 0 },
			"ipc:///run/sync",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := setup{args: tc.args}.mustLoad(t)
			want := config.Default()
			tc.want(&want)
			equal(t, got, want)
			if got := got.Replicas.Publish(); got != tc.publish {
				t.Errorf("Publish = %q, want %q", got, tc.publish)
			}
		})
	}
}

// TestConflicts: settings that do not go together are refused by a text that
// names them.
func TestConflicts(t *testing.T) {
	tests := map[string]struct {
		start setup
		want  string // without "invalid configuration: "
	}{
		"peers without a port": {
			setup{args: []string{"--replica-sync-peers=tcp://b:1"}},
			"--replica-sync-peers requires --replica-sync-port",
		},
		"state on disk beside other replicas": {
			setup{args: []string{"--data-dir=/data", "--replica-sync-port=9092"}},
			"--data-dir is for the only replica: with --replica-sync-port the other replicas have the state",
		},
		"an index over plain HTTP where certificates are demanded": {
			setup{args: []string{"--peer-ca=ca.pem", "--indexer-peers=https://a:1,http://b:1"}},
			"--indexer-peers: http://b:1: with --peer-ca or --peer-cert replicas are read over https only",
		},
		"hard sessions without a time": {
			setup{args: []string{"--gateway-port=9002", "--gateway-session-affinity=hard"}},
			"--gateway-session-affinity: hard requires --session-affinity-ttl-secs",
		},
		"a token for engines that may be anywhere": {
			setup{args: []string{"--engine-token-file=token"}},
			"--engine-token-file: needs --allow-endpoints: the engine of every registered URL is shown the token",
		},
		"peers of the environment without a port": {
			setup{env: map[string]string{"SELECT_SERVICE_REPLICA_SYNC_PEERS": "tcp://b:1"}},
			"SELECT_SERVICE_REPLICA_SYNC_PEERS: --replica-sync-peers requires --replica-sync-port",
		},
		"peers of the slot tracker without an endpoint": {
			setup{args: []string{"slots", "--replica-sync-peers=tcp://b:1"}},
			"--replica-sync-peers requires --replica-sync-bind",
		},
		"a bad port is one fault, not two": {
			setup{args: []string{"--replica-sync-port=0", "--replica-sync-peers=tcp://b:1"}},
			"--replica-sync-port: replica sync port must be greater than zero",
		},
		"a bad endpoint likewise": {
			setup{args: []string{"slots", "--replica-sync-bind=tcp://*:0", "--replica-sync-peers=tcp://b:1"}},
			"--replica-sync-bind: replica sync port must be greater than zero",
		},
		"a bad peer": {
			setup{args: []string{"--replica-sync-port=1", "--replica-sync-peers=nope"}},
			"--replica-sync-peers: invalid replica peer endpoint `nope`: invalid ZMQ endpoint `nope`: missing scheme",
		},
		"an advertised endpoint alone": {
			setup{args: []string{"--replica-sync-advertise=tcp://a:1"}},
			"--replica-sync-advertise requires --replica-sync-bind",
		},
		"oneself as a peer": {
			setup{args: []string{"--replica-sync-bind=tcp://*:1", "--replica-sync-advertise=tcp://a:1", "--replica-sync-peers=tcp://b:1,tcp://a:1"}},
			"--replica-sync-peers: peer endpoint matches this replica's advertised endpoint",
		},
		"two spellings that differ": {
			setup{args: []string{"--replica-sync-port=1", "--replica-sync-bind=tcp://*:2"}},
			"--replica-sync-bind: tcp://*:2 differs from --replica-sync-port 1, which is tcp://*:1: both name the one PUB socket, give one of them",
		},
		"replica sync on the HTTP port": {
			setup{args: []string{"--replica-sync-port=8092"}},
			"--replica-sync-port: port 8092 is that of the selection service (--port); give replica sync another one",
		},
		"replica sync on the HTTP port, whatever the interface": {
			setup{args: []string{"--port=7000", "--replica-sync-bind=tcp://10.0.0.1:7000"}},
			"--replica-sync-bind: port 7000 is that of the selection service (--port); give replica sync another one",
		},
		"replica sync on the slot tracker's port": {
			setup{args: []string{"--slots-port=8091"}, env: map[string]string{"SELECT_SERVICE_REPLICA_SYNC_BIND": "tcp://*:8091"}},
			"SELECT_SERVICE_REPLICA_SYNC_BIND: port 8091 is that of the slot tracker (--slots-port); give replica sync another one",
		},
		"replica sync of the slot tracker on its port": {
			setup{args: []string{"slots", "--replica-sync-bind=tcp://*:8091"}},
			"--replica-sync-bind: port 8091 is that of the slot tracker (--port); give replica sync another one",
		},
		"replica sync on the Conductor's port": {
			setup{args: []string{"--conductor-port=13333", "--replica-sync-port=13333"}},
			"--replica-sync-port: port 13333 is that of the Conductor API (--conductor-port); give replica sync another one",
		},
		"the Conductor on the port of the selection service": {
			setup{args: []string{"--conductor-port=8092"}},
			"--conductor-port: port 8092 is that of the selection service (--port); give the Conductor API another one",
		},
		"the Conductor on the slot tracker's port": {
			setup{args: []string{"--conductor-port=7", "--slots-port=7"}},
			"--conductor-port: port 7 is that of the slot tracker (--slots-port); give the Conductor API another one",
		},
		"capacities beside events": {
			setup{args: []string{"--router-approximate-cache-policy=lru"}},
			"--router-approximate-cache-policy: router_approximate_cache_policy=lru requires use_kv_events=false; the local side indexer is TTL-only",
		},
		"predictions beside events that are off": {
			setup{args: []string{"--use-kv-events=false"}, env: map[string]string{"DYN_ROUTER_PREDICTED_TTL_SECS": "0"}},
			"DYN_ROUTER_PREDICTED_TTL_SECS: router_predicted_ttl_secs requires use_kv_events=true",
		},
		"credit above 1 in the 1.3 contract": {
			setup{env: map[string]string{"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "1.5"}},
			"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT: 1.5 is not in [0, 1] (--contract=1.6 allows more)",
		},
		"two listeners on one port": {
			setup{args: []string{"--slots-port=8092"}},
			"--slots-port: port 8092 is that of the selection service (--port); give the slot tracker another one",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := tc.start.load(); err == nil || err.Error() != "invalid configuration: "+tc.want {
				t.Errorf("Load = %v, want %s", err, tc.want)
			}
		})
	}
}

// TestThreeListenersOnOnePort: each of the two that have to go is named.
func TestThreeListenersOnOnePort(t *testing.T) {
	_, err := setup{args: []string{"--conductor-port=8092", "--slots-port=8092"}}.load()
	const want = `invalid configuration, 2 faults:
  --slots-port: port 8092 is that of the selection service (--port); give the slot tracker another one
  --conductor-port: port 8092 is that of the selection service (--port); give the Conductor API another one`
	if err == nil || err.Error() != want {
		t.Errorf("Load = %v, want %s", err, want)
	}
}

// TestSlotsCommand: the slot tracker alone has exactly its requirement's flags,
// the few variables that concern it, and no file.
func TestSlotsCommand(t *testing.T) {
	equal(t, setup{args: []string{"slots"}}.mustLoad(t), config.DefaultSlots())

	want := config.DefaultSlots()
	want.Server = config.Server{Listen: []string{"::1"}, Port: 8092, SlotsPort: 1234, UI: "/", Contract: contract.V13, AdvertiseURL: "http://a:1234"}
	want.Replicas.SyncBind, want.Replicas.SyncAdvertise = "tcp://*:8092", "tcp://a:8092"
	want.Replicas.SyncPeers = []string{"tcp://b:8092"}
	want.Log.Level = zerolog.DebugLevel
	equal(t, setup{
		args: []string{
			"slots", "--port", "1234", "--replica-sync-bind", "tcp://*:8092", "--replica-sync-advertise", "tcp://a:8092",
			"--replica-sync-peers", "tcp://b:8092",
		},
		env: map[string]string{
			"SELECT_SERVICE_LISTEN": "::1", "SELECT_SERVICE_ADVERTISE_URL": "http://a:1234", "SELECT_SERVICE_LOG_LEVEL": "debug",
			"SELECT_SERVICE_SLOTS_PORT": "1", "SELECT_SERVICE_PORT": "2", "SELECT_SERVICE_CONDUCTOR_PORT": "1234", "SELECT_SERVICE_CONFIG": "absent.yaml", "DYN_ROUTER_TEMPERATURE": "-1",
		},
	}.mustLoad(t), want)

	for _, flag := range []string{
		"--listen=::1", "--slots-port=1", "--conductor-port=1", "--replica-sync-port=1", "--indexer-peers=http://a", "--threads=1", "--config=c.yaml",
		"--print-config", "--check-config", "--log-level=info", "--=1",
	} {
		mustFail(t, setup{args: []string{"slots", flag}, files: map[string]string{"c.yaml": ""}}, "invalid configuration: ")
	}
	mustFail(t, setup{args: []string{"slots", "--port=x"}}, "--port: ")
	mustFail(t, setup{args: []string{"--port=1", "slots"}}, `unexpected argument "slots"`)
	if got := (setup{args: []string{"slots", "--help", "--x"}}).mustLoad(t); got.Action != config.Help || !got.SlotsOnly {
		t.Errorf("slots --help: %+v", got)
	}
}
