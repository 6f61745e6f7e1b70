package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// conflict is a fault of several settings, each of which is valid by itself.
type conflict struct {
	key   string   // the setting to name
	other []string // the other settings that take part in it
	err   error
}

var (
	errSocketsOnly        = errors.New("needs an address in --listen beside the unix sockets")
	errSocketCertificates = errors.New("callers on unix sockets have no certificates: with --tls-client-ca they need --tokens-file")
)

var errHardWithoutTTL = errors.New("hard requires --session-affinity-ttl-secs")

// The texts of dynamo-kv-router 1.3.1 and of the slot tracker.
var (
	errPeersWithoutPort = errors.New("--replica-sync-peers requires --replica-sync-port")
	errPeersWithoutBind = errors.New("--replica-sync-peers requires --replica-sync-bind")
	errDataReplicated   = errors.New("--data-dir is for the only replica: with --replica-sync-port the other replicas have the state")
	errAdvertiseUnbound = errors.New("--replica-sync-advertise requires --replica-sync-bind")
)

// The texts of dynamo-kv-router 1.6.1.
var (
	errPredictedWithoutEvents = errors.New("router_predicted_ttl_secs requires use_kv_events=true")
	errLRUWithEvents          = errors.New("router_approximate_cache_policy=lru requires use_kv_events=false; the local side indexer is TTL-only")
)

// ErrOwnEndpoint refuses this replica's advertised endpoint as a peer.
var ErrOwnEndpoint = errors.New("peer endpoint matches this replica's advertised endpoint")

// Keys of settings that depend on one another.
const (
	keyCredit         = "router.kv_overlap_score_credit"
	keyContract       = "server.contract"
	keyApproximate    = "kv_events.approximate_ttl_secs"
	keyPredicted      = "kv_events.predicted_ttl_secs"
	keyCachePolicy    = "kv_events.approximate_cache_policy"
	keyEvents         = "kv_events.enabled"
	keyActiveRequests = "router.decode_active_request_weight"
	keyListen         = "server.listen"
	keyPort           = "server.port"
	keySlotsPort      = "server.slots_port"
	keyConductorPort  = "server.conductor_port"
	keyGatewayPort    = "gateway.port"
	keyHealthPort     = "gateway.health_port"
	keyProxyPort      = "proxy.port"
	keyGatewayModels  = "gateway.models"
	keySessions       = "gateway.session_affinity"
	keySessionTTL     = "selections.session_affinity_ttl_secs"
	keyTokenizerURL   = "gateway.tokenizer_url"
	keyTokenizer      = "gateway.tokenizer_protocol"
	keySyncPort       = "replicas.sync_port"
	keyBind           = "replicas.sync_bind"
	keyAdvertise      = "replicas.sync_advertise"
	keyPeers          = "replicas.sync_peers"
	keyIndexerPeers   = "replicas.indexer_peers"
	keyCert           = "tls.cert"
	keyKey            = "tls.key"
	keyClientCA       = "tls.client_ca"
	keyPeerCA         = "tls.peer_ca"
	keyPeerCert       = "tls.peer_cert"
	keyPeerKey        = "tls.peer_key"
	keyEngineCert     = "tls.engine_cert"
	keyEngineKey      = "tls.engine_key"
	keyEngineToken    = "engines.token_file"
	keyEndpoints      = "access.allow_endpoints"
	keyData           = "data.dir"
	keyQueue          = "queue.threshold"
	keyPolicy         = "queue.policy_config"
	keySelection      = "router.worker_selection_policy"
	keyPolicyType     = "router.policy"
	keyPrefill        = "overload.active_prefill_tokens_threshold"
	keyPrefillShare   = "overload.active_prefill_tokens_threshold_frac"
)

// conflicts checks the settings that depend on one another (decision D19).
func (c Config) conflicts() []conflict {
	found := slices.Concat(c.portConflicts(), c.socketConflicts(), c.TLS.conflicts(), c.Gateway.conflicts(), c.Kubernetes.conflicts(), c.Fleet.conflicts(c.Replicas))
	if err := selector.CheckWeight(c.Router.OverlapCredit, selector.MaxCredit13); err != nil && c.Server.Contract != contract.V16 {
		found = append(found, conflict{keyCredit, []string{keyContract}, fmt.Errorf("%w (--contract=1.6 allows more)", err)})
	}
	if c.KVEvents.ApproximatePolicy == PolicyLRU && c.KVEvents.Enabled {
		found = append(found, conflict{keyCachePolicy, []string{keyEvents}, errLRUWithEvents})
	}
	if c.KVEvents.PredictedTTL != nil && !c.KVEvents.Enabled {
		found = append(found, conflict{keyPredicted, []string{keyEvents}, errPredictedWithoutEvents})
	}
	if c.Engines.TokenFile != "" && len(c.Access.AllowEndpoints) == 0 {
		found = append(found, conflict{keyEngineToken, []string{keyEndpoints}, errTokenForAnybody})
	}
	if c.Gateway.SessionAffinity == SessionsHard && c.Selections.SessionTTL == 0 {
		found = append(found, conflict{keySessions, []string{keySessionTTL}, errHardWithoutTTL})
	}
	r := c.Replicas
	if spelled := (Replicas{SyncPort: r.SyncPort}).Publish(); spelled != "" && r.SyncBind != "" && r.SyncBind != spelled {
		found = append(found, conflict{
			keyBind,
			[]string{keySyncPort},
			fmt.Errorf("%s differs from --replica-sync-port %d, which is %s: both name the one PUB socket, give one of them",
				r.SyncBind, r.SyncPort, spelled),
		})
	}
	switch {
	case r.Publish() != "":
	case len(r.SyncPeers) > 0:
		found = append(found, conflict{keyPeers, []string{keySyncPort, keyBind}, c.peersUnbound()})
	case r.SyncAdvertise != "":
		found = append(found, conflict{keyAdvertise, []string{keySyncPort, keyBind}, errAdvertiseUnbound})
	}
	if c.Data.Dir != "" && r.Publish() != "" && !c.Fleet.Enabled() {
		found = append(found, conflict{keyData, []string{keySyncPort, keyBind}, errDataReplicated})
	}
	if c.TLS.PeerCA != "" || c.TLS.PeerCert != "" {
		for _, peer := range r.IndexerPeers {
			if !strings.HasPrefix(peer, "https:") {
				found = append(found, conflict{
					keyIndexerPeers,
					[]string{keyPeerCA, keyPeerCert},
					fmt.Errorf("%s: with --peer-ca or --peer-cert replicas are read over https only", peer),
				})
			}
		}
	}
	for _, peer := range r.SyncPeers {
		if peer == r.SyncAdvertise {
			found = append(found, conflict{keyPeers, []string{keyAdvertise}, ErrOwnEndpoint})
		}
	}
	return found
}

// conflicts refuses a certificate without its key and the like.
func (t TLS) conflicts() (found []conflict) {
	for _, need := range []struct {
		key, path, other, otherPath, otherFlag string
	}{
		{keyCert, t.Cert, keyKey, t.Key, "--tls-key"},
		{keyKey, t.Key, keyCert, t.Cert, "--tls-cert"},
		{keyClientCA, t.ClientCA, keyCert, t.Cert, "--tls-cert"},
		{keyPeerCert, t.PeerCert, keyPeerKey, t.PeerKey, "--peer-key"},
		{keyPeerKey, t.PeerKey, keyPeerCert, t.PeerCert, "--peer-cert"},
		{keyEngineCert, t.EngineCert, keyEngineKey, t.EngineKey, "--engine-key"},
		{keyEngineKey, t.EngineKey, keyEngineCert, t.EngineCert, "--engine-cert"},
	} {
		if need.path != "" && need.otherPath == "" {
			found = append(found, conflict{need.key, []string{need.other}, fmt.Errorf("needs %s", need.otherFlag)})
		}
	}
	return found
}

// socketConflicts refuses settings that unix sockets cannot satisfy: they have no ports, and
// their callers have no certificates.
func (c Config) socketConflicts() (found []conflict) {
	s := c.Server
	if c.TLS.ClientCA != "" && c.Access.TokensFile == "" && len(s.Sockets()) > 0 {
		found = append(found, conflict{keyListen, []string{keyClientCA}, errSocketCertificates})
	}
	if s.Host() != "" {
		return found
	}
	for _, port := range []struct {
		wanted bool
		key    string
	}{
		{s.SlotsPort != 0 && !c.SlotsOnly, keySlotsPort},
		{s.ConductorPort != 0, keyConductorPort},
		{c.Gateway.Port != 0, keyGatewayPort},
		{c.Proxy.Port != 0, keyProxyPort},
		{c.Replicas.Publish() != "" && s.AdvertiseURL == "", keySyncPort},
	} {
		if port.wanted {
			found = append(found, conflict{port.key, []string{keyListen}, errSocketsOnly})
		}
	}
	return found
}

// listener is a listener with a port of its own.
type listener struct {
	key, flag, name string
	port            uint16 // 0: a free one, or no listener
}

// listeners are those of the HTTP host, the first ones first in right of a port.
func (c Config) listeners() []listener {
	s := c.Server
	switch {
	case s.Host() == "":
		return nil // only unix sockets
	case c.SlotsOnly:
		return []listener{{keySlotsPort, "--port", "the slot tracker", s.SlotsPort}}
	}
	return []listener{
		{keyPort, "--port", "the selection service", s.Port},
		{keySlotsPort, "--slots-port", "the slot tracker", s.SlotsPort},
		{keyConductorPort, "--conductor-port", "the Conductor API", s.ConductorPort},
		{keyGatewayPort, "--gateway-port", "the gateway", c.Gateway.Port},
		{keyHealthPort, "--gateway-health-port", "the gateway's health service", c.Gateway.HealthPort},
		{keyProxyPort, "--proxy-port", "the proxy", c.Proxy.Port},
	}
}

// portConflicts refuses two listeners on one port, also on different interfaces: ZMQ would bind
// its publisher beside an HTTP listener, or the start would fail with "address in use" without
// naming the setting.
func (c Config) portConflicts() (found []conflict) {
	all := c.listeners()
	for _, pub := range []struct{ key, endpoint string }{
		{keySyncPort, Replicas{SyncPort: c.Replicas.SyncPort}.Publish()}, {keyBind, c.Replicas.SyncBind},
	} {
		e, _ := catalog.ParseEndpoint(pub.endpoint) // a bad one has its own fault
		all = append(all, listener{key: pub.key, name: "replica sync", port: e.Port})
	}
	for i, l := range all {
		other := slices.IndexFunc(all, func(o listener) bool { return o.port == l.port })
		if l.port != 0 && other < i && all[other].flag != "" {
			o := all[other]
			found = append(found, conflict{
				l.key,
				[]string{o.key},
				fmt.Errorf("port %d is that of %s (%s); give %s another one", l.port, o.name, o.flag, l.name),
			})
		}
	}
	if c.Gateway.HealthPort != 0 && c.Gateway.Port == 0 {
		found = append(found, conflict{keyHealthPort, []string{keyGatewayPort}, errHealthOfNothing})
	}
	return found
}

// errTokenForAnybody refuses a token for engines whose addresses are not limited. Everybody who may register a
// worker could then read the token, by an address of their own.
var errTokenForAnybody = errors.New("needs --allow-endpoints: the engine of every registered URL is shown the token")

// errHealthOfNothing refuses a health port without a gateway.
var errHealthOfNothing = errors.New("needs --gateway-port, whose health it tells")

// conflicts refuses a name for two models, and engines as SGLang's renderer.
func (g Gateway) conflicts() (found []conflict) {
	names := make(map[string]bool, len(g.Models))
	for _, m := range g.Models {
		name, _, err := parseGatewayModel(m)
		if err == nil && names[name] {
			found = append(found, conflict{keyGatewayModels, nil, fmt.Errorf("the name %q is given twice", name)})
		}
		names[name] = true
	}
	if g.Tokenizer.Protocol == ProtocolSGLangRenderer && g.Tokenizer.URL == TokenizerWorker {
		found = append(found, conflict{
			keyTokenizer,
			[]string{keyTokenizerURL},
			errors.New("SGLang's renderer is a service of its own: --tokenizer-url has to name it"),
		})
	}
	return found
}

// peersUnbound returns the error for peers without an endpoint of our own. Each command
// names its own flag.
func (c Config) peersUnbound() error {
	if c.SlotsOnly {
		return errPeersWithoutBind
	}
	return errPeersWithoutPort
}

// checkConflicts adds the conflicts to the faults, except those that follow from a setting with
// a bad text: a bad port is not a missing one. Bad peers still need a port.
func (l *loader) checkConflicts() {
	conflicts := l.conf.conflicts()
	if l.bad[keyPeers] && len(l.conf.Replicas.SyncPeers) == 0 && l.conf.Replicas.Publish() == "" {
		conflicts = append(conflicts, conflict{keyPeers, []string{keySyncPort, keyBind}, l.conf.peersUnbound()})
	}
	for _, c := range conflicts {
		if slices.ContainsFunc(c.other, func(key string) bool { return l.bad[key] }) {
			continue
		}
		err := c.err
		if name := l.source[c.key]; !strings.HasPrefix(err.Error(), name+" ") { // else the text names it
			err = fmt.Errorf("%s: %w", name, err)
		}
		l.faults = append(l.faults, err)
	}
}

// warnContract warns of settings that the configured contract does not have, unless they have
// their defaults, as in the shipped file.
func (l *loader) warnContract() {
	if l.conf.Server.Contract == contract.V16 {
		return
	}
	defaults := l.command.defaults()
	for _, s := range []struct {
		key     string
		changed bool
	}{
		{keyApproximate, l.conf.KVEvents.ApproximateTTL != defaults.KVEvents.ApproximateTTL},
		{keyCachePolicy, l.conf.KVEvents.ApproximatePolicy != defaults.KVEvents.ApproximatePolicy},
		{keyActiveRequests, l.conf.Router.ActiveRequests != defaults.Router.ActiveRequests},
	} {
		if s.changed {
			l.note("%s has no effect with --contract 1.3", l.source[s.key])
		}
	}
}

// warnQueue warns of prefill thresholds that the wait queue makes useless. A request leaves the
// queue only when one of its ranks is at or below the queue's mark, and such a rank is not
// above a threshold at or over the mark either.
func (l *loader) warnQueue() {
	q, limits := l.conf.Queue, l.conf.Overload.Thresholds
	var set []string
	if limits.PrefillTokens != nil {
		set = append(set, l.source[keyPrefill])
	}
	if limits.PrefillFraction != nil {
		set = append(set, l.source[keyPrefillShare])
	}
	if !q.Enabled() || len(set) == 0 {
		return
	}
	queue, mark := l.source[keyQueue], "queue threshold times max_num_batched_tokens"
	if q.File != nil {
		queue, mark = l.source[keyPolicy], "the busy thresholds of its class"
	}
	l.note("%s beside the wait queue of %s: a request waits until a rank that it may use has no more prefill than the queue's mark, %s, "+
		"and only then are thresholds looked at, so a prefill threshold at or above the mark refuses nothing. To refuse instead of "+
		"waiting, limit the queue in a policy file: request_queue_limit_per_worker, 0 for no wait at all",
		strings.Join(set, " and "), queue, mark)
}
