package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
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

// NewToken returns a new token of 256 random bits.
func NewToken() string {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
}

// Entry returns the entry that gives the grant to a token, in YAML, for the list tokens of the tokens
// file. It has only the token's hash. The error says what the file would not have.
func (g Grant) Entry(token string) (string, error) {
	sum := sha256.Sum256([]byte(token))
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
