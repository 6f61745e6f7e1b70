package config

import (
	"errors"
	"fmt"
	"strings"
)

// removedOption is a setting of an earlier version. It is refused by name: the service would do
// less than whoever sets it relies on.
type removedOption struct {
	key, flag string // as of an option; without a key only the flag and its variable are refused
	err       error
	slots     bool // the subcommand "slots" had it, too
}

var errEngineCurve = errors.New("encryption towards engines is gone, because no engine's publisher has it: " +
	"unset this, and keep engines' events in a network that you trust")

var errReplicaCurve = errors.New("CURVE between replicas is gone: unset this, and let replicas meet over NATS with TLS (--fleet), " +
	"or keep their mesh in a network of its own with --allow-endpoints")

// fixedAt is the fault of a setting whose default has become the only value.
func fixedAt(value string) error {
	return fmt.Errorf("is gone: unset this, it is always %s", value)
}

// nowIn is the fault of a setting, or of its flag and variable, in whose place there is another one.
func nowIn(other string) error { return fmt.Errorf("is gone: set %s instead", other) }

// removedOptions are those of all sources.
var removedOptions = append(filed(), []removedOption{
	{key: "curve.secret_key_file", flag: "zmq-curve-secret-key-file", err: errEngineCurve},
	{key: "curve.engine_key_file", flag: "zmq-curve-engine-key-file", err: errEngineCurve},
	{key: "curve.publisher_keys_file", flag: "zmq-curve-publisher-keys-file", err: errEngineCurve},
	{key: "curve.replica_key_file", flag: "zmq-curve-replica-key-file", err: errReplicaCurve},

	{key: "server.ui_base", flag: "ui-base", err: nowIn("--ui to the path (server.ui)")},
	{key: "gateway.retry_after_secs", flag: "gateway-retry-after-secs", err: nowIn("--overload-retry-after-secs (overload.retry_after_secs)")},
	{key: "proxy.idle_timeout", flag: "proxy-idle-timeout", err: fixedAt("4s, less than engines keep a connection")},
	{key: "proxy.write_timeout", flag: "proxy-write-timeout", err: fixedAt("1m")},
	{key: "kubernetes.annotation_prefix", flag: "kube-annotation-prefix", err: fixedAt("select-service/")},
	{key: "engines.reported_load_ttl", flag: "reported-load-ttl", err: fixedAt("5s, and more for a source that reports less often")},
	{key: "engines.warmup_seconds", flag: "warmup-seconds", err: fixedAt("60")},
	{key: "replicas.recovery_grace", flag: "recovery-grace", err: fixedAt("10m")},
	{key: "fleet.settings", flag: "fleet-settings", err: fixedAt("true: the replicas of a fleet share thresholds and policies")},
	{key: "limits.max_reservation_blocks", flag: "max-reservation-blocks", err: fixedAt("4194304, more than a request can have"), slots: true},
	{key: "limits.max_dump_readers", flag: "max-dump-readers", err: fixedAt("8")},
	{key: "limits.max_snapshot_readers", flag: "max-snapshot-readers", err: fixedAt("64, or --max-peers if that is more"), slots: true},
}...)

// filed returns the flags of settings that only the file has by now, and Dynamo's variables.
func filed() (all []removedOption) {
	for _, o := range options {
		if o.key == "" || o.flag != "" {
			continue
		}
		flag, ok := formerFlags[o.key]
		if name, in := strings.CutPrefix(o.key, kubernetesGroup+"."); in {
			flag, ok = "kube-"+strings.ReplaceAll(name, "_", "-"), true
		}
		if ok {
			all = append(all, removedOption{flag: flag, err: nowIn(strings.Join(append([]string{o.key + " in the configuration file"}, o.env...), ", or "))})
		}
	}
	return all
}

// formerFlags are those of settings beside Kubernetes'.
var formerFlags = map[string]string{
	"gateway.metadata_prefix":      "gateway-metadata-prefix",
	"gateway.tokenizer_max_answer": "tokenizer-max-answer",
}

// removedBy returns why a setting is refused whose name is the given one; nil: it never was one.
func removedBy(name string, nameOf func(removedOption) string) error {
	for _, o := range removedOptions {
		if nameOf(o) == name {
			return o.err
		}
	}
	return nil
}
