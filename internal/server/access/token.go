package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// tokenPrefix marks tokens of this service, for scanners of leaked secrets.
const tokenPrefix = "sst_"

// Grant is what a new token allows.
type Grant struct {
	Name          string
	Roles         []Role
	Model, Tenant string // "": any
}

// WriteNew writes a new token of 256 random bits on a line of its own, and below it the entry
// for the tokens file, which has only its hash.
func (g Grant) WriteNew(w io.Writer) error {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	text := tokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	entry, err := g.entry(sha256.Sum256([]byte(text)))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n%s", text, entry)
	return err
}

// entry returns the YAML entry of the grant.
func (g Grant) entry(sum [sha256.Size]byte) (string, error) {
	names := make([]string, len(g.Roles))
	for i, r := range g.Roles {
		names[i] = r.String()
	}
	var b strings.Builder
	// The strings of JSON are strings of YAML.
	fmt.Fprintf(&b, "- name: %s\n  sha256: %s\n  roles: [%s]\n", strconv.Quote(g.Name), hex.EncodeToString(sum[:]), strings.Join(names, ", "))
	if g.Tenant != "" {
		fmt.Fprintf(&b, "  tenant: %s\n", strconv.Quote(g.Tenant))
	}
	if g.Model != "" {
		fmt.Fprintf(&b, "  model: %s\n", strconv.Quote(g.Model))
	}
	if _, err := decode("token", []byte("tokens:\n"+b.String())); err != nil {
		return "", err
	}
	return b.String(), nil
}
