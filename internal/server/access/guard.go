package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/transport/filewatch"
)

// maxToken is the longest token in bytes.
const maxToken = 512

// Guard authenticates the callers of requests with a tokens file. A nil Guard lets every
// request pass, with the nil Caller.
type Guard struct {
	file     *filewatch.Watcher
	now      func() time.Time
	failures *failures
	callers  atomic.Pointer[directory]
}

// New reads a tokens file. The error names every fault with its line.
func New(path string) (*Guard, error) {
	start := time.Now()
	g := &Guard{now: time.Now, failures: newFailures(func() time.Duration { return time.Since(start) })}
	var err error
	g.file, err = filewatch.Load("tokens file", []string{path}, func(contents [][]byte) error {
		d, err := decode(path, contents[0])
		if err == nil {
			g.callers.Store(d)
		}
		return err
	})
	return g, err
}

// Watcher follows the file, nil for a nil Guard.
func (g *Guard) Watcher() *filewatch.Watcher {
	if g == nil {
		return nil
	}
	return g.file
}

// Admit returns the caller of a request if it has the role. scoped tells that the route keeps
// to the caller's scope; other routes refuse callers that are limited to one. The error is a
// *DeniedError; with it the caller is nil if it is unknown.
func (g *Guard) Admit(r *http.Request, role Role, scoped bool) (*Caller, error) {
	if g == nil {
		return nil, nil
	}
	c, err := g.Identify(r)
	switch {
	case errors.Is(err, errNoToken) && role == Public:
		return anonymous, nil
	case err != nil:
		return nil, err
	case !c.May(role):
		return c, errRole[role]
	case !scoped && role != Public && c.Scoped():
		return c, errUnscopedOnly
	}
	return c, nil
}

// Identify returns the caller of a request. A token takes precedence over a certificate.
func (g *Guard) Identify(r *http.Request) (*Caller, error) {
	if g == nil {
		return nil, nil
	}
	d := g.callers.Load()
	sent := r.Header["Authorization"]
	if len(sent) == 0 {
		if c := d.certified(r, g.now); c != nil {
			return c, nil
		}
		return nil, errNoToken
	}
	if len(sent) == 1 {
		if c := d.find(sent[0]); c != nil {
			return c, nil
		}
	}
	if !g.failures.allow(address(r)) {
		return nil, errTooManyFailures
	}
	return nil, errBadToken
}

// find returns the caller of an Authorization header, nil if there is none. Its duration does
// not depend on which token it is or how much of it is right.
func (d *directory) find(header string) *Caller {
	scheme, text, _ := strings.Cut(header, " ")
	text = strings.TrimSpace(text)
	if !strings.EqualFold(scheme, "Bearer") || text == "" || len(text) > maxToken {
		return nil
	}
	var buf [maxToken]byte
	sum := sha256.Sum256(buf[:copy(buf[:], text)])
	found := -1
	for i := range d.tokens {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], d.tokens[i].sum[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return d.tokens[found].caller
}

// certified returns the caller of the connection's client certificate, nil if there is none.
// The certificate was verified at the handshake; its validity is checked again, since a
// connection may outlive it.
func (d *directory) certified(r *http.Request, now func() time.Time) *Caller {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(d.names) == 0 {
		return nil
	}
	for _, chain := range r.TLS.VerifiedChains {
		if at := now(); len(chain) > 0 && !at.After(chain[0].NotAfter) && !at.Before(chain[0].NotBefore) {
			for _, name := range namesOf(chain[0]) {
				if c := d.names[name]; c != nil {
					return c
				}
			}
		}
	}
	return nil
}

// namesOf lists the names of a certificate's subject, the alternative names first.
func namesOf(cert *x509.Certificate) []string {
	var names []string
	for _, u := range cert.URIs {
		names = append(names, u.String())
	}
	names = append(names, cert.DNSNames...)
	names = append(names, cert.EmailAddresses...)
	if cert.Subject.CommonName != "" {
		names = append(names, cert.Subject.CommonName)
	}
	return names
}

// address returns the address of the connection. Headers that proxies add are not trusted.
func address(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // the zero Addr is one of its own
	return at.Addr()
}
