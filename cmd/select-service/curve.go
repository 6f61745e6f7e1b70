package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/curve"
	"github.com/select-service/select-service/internal/zmqsock"
)

// curveKeys are the keys of ZMQ connections.
type curveKeys struct{ zmqsock.Curve }

// readCurve reads the files with keys.
func readCurve(conf config.Curve) (keys curveKeys, faults []error) {
	pair := func(file string) *curve.KeyPair {
		if file == "" {
			return nil
		}
		pair, err := curve.ReadKeyPair(file)
		if err != nil {
			faults = append(faults, fmt.Errorf("CURVE key: %w", err))
		}
		return pair
	}
	public := func(file string) []curve.PublicKey {
		if file == "" {
			return nil
		}
		all, err := curve.ReadPublicKeys(file)
		if err != nil {
			faults = append(faults, fmt.Errorf("CURVE key: %w", err))
		}
		return all
	}
	keys.Own, keys.Replicas = pair(conf.SecretKeyFile), pair(conf.ReplicaKeyFile)
	keys.Publishers = public(conf.PublisherKeysFile)
	switch engines := public(conf.EngineKeyFile); {
	case len(engines) == 1:
		keys.Engines = engines[0]
	case len(engines) > 1:
		faults = append(faults, fmt.Errorf("CURVE key: %s: %d keys, want one", conf.EngineKeyFile, len(engines)))
	}
	return keys, faults
}

// log logs which connections are encrypted, if any key is configured.
func (keys *curveKeys) log(replicas bool, log zerolog.Logger) {
	if keys.Own == nil && keys.Engines.IsZero() && keys.Replicas == nil {
		return
	}
	engines, bound := "those with kv_events_server_key", "no"
	if !keys.Engines.IsZero() {
		engines = "all"
	}
	if keys.Publishers != nil {
		bound = "yes"
	}
	line := log.Info().Str("engines", engines).Str("bound_endpoints", bound)
	if keys.Own != nil {
		line.Stringer("public_key", keys.Own.Public)
	}
	if replicas {
		line.Bool("replicas", keys.Replicas != nil)
	}
	line.Msg("zmq connections encrypted with CURVE")
}

// curveCommand is the subcommand that creates CURVE keys.
const curveCommand = "curve"

const curveUsage = `Usage: select-service curve new [FILE]

Makes a CURVE key pair. With FILE, which must not exist, it is written there, for
its owner alone to read, and the public key is printed; else all of it is printed.
`

// newCurve executes "curve new".
func newCurve(args []string, stdout io.Writer) error {
	switch {
	case len(args) > 0 && slices.Contains([]string{"-h", "--help"}, args[len(args)-1]):
		_, err := io.WriteString(stdout, curveUsage)
		return err
	case len(args) == 0 || args[0] != "new" || len(args) > 2:
		return &config.InvalidError{Faults: []error{errors.New("want: " + curveCommand + " new [FILE]")}}
	}
	pair := curve.NewKeyPair()
	if len(args) == 1 {
		_, err := io.WriteString(stdout, pair.Certificate())
		return err
	}
	f, err := os.OpenFile(args[1], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.WriteString(f, pair.Certificate()); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, pair.Public)
	return err
}
