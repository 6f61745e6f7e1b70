package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/transport/curve"
)

// readCurve reads the key pair of the replicas, nil for none.
func readCurve(conf config.Curve) (*curve.KeyPair, error) {
	if conf.ReplicaKeyFile == "" {
		return nil, nil //nolint:nilnil // documented
	}
	pair, err := curve.ReadKeyPair(conf.ReplicaKeyFile)
	if err != nil {
		return nil, fmt.Errorf("CURVE key: %w", err)
	}
	return pair, nil
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
