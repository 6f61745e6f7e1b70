package config

import "errors"

// removedOption is a setting of an earlier release. It is refused by name: the service would do
// less than whoever sets it relies on.
type removedOption struct {
	key, flag string // as of an option
	err       error
}

var errEngineCurve = errors.New("encryption towards engines is gone, because no engine's publisher has it: " +
	"unset this, and keep engines' events in a network that you trust")

var errReplicaCurve = errors.New("CURVE between replicas is gone: unset this, and let replicas meet over NATS with TLS (--fleet), " +
	"or keep their mesh in a network of its own with --allow-endpoints")

// removedOptions are those of all sources. The subcommand "slots" had the flag of replicas only.
var removedOptions = []removedOption{
	{"curve.secret_key_file", "zmq-curve-secret-key-file", errEngineCurve},
	{"curve.engine_key_file", "zmq-curve-engine-key-file", errEngineCurve},
	{"curve.publisher_keys_file", "zmq-curve-publisher-keys-file", errEngineCurve},
	{"curve.replica_key_file", "zmq-curve-replica-key-file", errReplicaCurve},
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
