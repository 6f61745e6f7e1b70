// Command roots prints Mozilla's certificate authorities as PEM, those of the version
// of golang.org/x/crypto/x509roots in its go.mod: the same on every machine. It is a
// module of its own, so that the service does not depend on them.
package main

import (
	"bufio"
	"encoding/pem"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	out := bufio.NewWriter(os.Stdout)
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file of certificates cannot say what else it is bound to
		}
		if err := pem.Encode(out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			fail(err)
		}
	}
	if err := out.Flush(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "roots:", err)
	os.Exit(1)
}
