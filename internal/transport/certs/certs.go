package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/transport/filewatch"
)

// Files has the paths of one side's certificates; empty: none.
type Files struct {
	Cert, Key string // certificate chain of this side, its own certificate first, and the key
	CA        string // authorities for the other side's certificate
}

// Side has the certificates that one side of connections presents and requires. It is safe for
// concurrent use; a nil Side has no files.
type Side struct {
	files   Files
	watcher *filewatch.Watcher
	current atomic.Pointer[material]
}

// material is the content of the files.
type material struct {
	cert *tls.Certificate // nil: none is presented
	ca   *x509.CertPool   // nil: clients need no certificate, servers one of the system's authorities
	// server is the configuration of listeners.
	server *tls.Config
}

// Load reads the files. what is their name in errors and in the log. Without files the result
// is nil.
func Load(what string, files Files) (*Side, error) {
	if files == (Files{}) {
		return nil, nil
	}
	s := &Side{files: files}
	var paths []string
	for _, path := range []string{files.Cert, files.Key, files.CA} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	var err error
	s.watcher, err = filewatch.Load(what, paths, s.use)
	return s, err
}

// Watcher follows the files; it has to be run. It is nil if there are none.
func (s *Side) Watcher() *filewatch.Watcher {
	if s == nil {
		return nil
	}
	return s.watcher
}

// NotAfter returns when the presented certificate expires; the zero time if there is none.
func (s *Side) NotAfter() time.Time {
	if s == nil || s.current.Load().cert == nil {
		return time.Time{}
	}
	return s.current.Load().cert.Leaf.NotAfter
}

// Presents reports whether a host is one of those that the presented certificate is for. A nil Side presents
// none.
func (s *Side) Presents(host string) bool {
	if s == nil {
		return false
	}
	cert := s.current.Load().cert
	return cert != nil && cert.Leaf.VerifyHostname(host) == nil
}

// use applies the contents of the files to new connections.
func (s *Side) use(contents [][]byte) error {
	var m material
	if s.files.Cert != "" {
		cert, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return fmt.Errorf("%s, %s: %w", s.files.Cert, s.files.Key, err)
		}
		m.cert, contents = &cert, contents[2:]
	}
	if s.files.CA != "" {
		m.ca = x509.NewCertPool()
		if !m.ca.AppendCertsFromPEM(contents[0]) {
			return fmt.Errorf("%s: %w", s.files.CA, errNoCertificate)
		}
	}
	m.server = m.serverConfig()
	s.current.Store(&m)
	return nil
}

var errNoCertificate = errors.New("no certificate in PEM")

// serverConfig returns a configuration with at least TLS 1.2 and Go's choice of ciphers.
//
// It has no HTTP/2: a decision is one small request with one answer, callers keep
// their connections, and the limits of the service are those of a connection with one
// request at a time. It has no session tickets, so that every connection proves its
// certificate to the authorities that are in force.
func (m *material) serverConfig() *tls.Config {
	conf := listenerDefaults()
	if m.cert != nil {
		conf.Certificates = []tls.Certificate{*m.cert}
	}
	if m.ca != nil {
		conf.ClientCAs = m.ca
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf
}

func listenerDefaults() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true}
}

// Server returns the configuration of listeners. Each handshake uses the current files.
func (s *Side) Server() *tls.Config {
	conf := listenerDefaults()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().server, nil }
	return conf
}

// ServerFor is Server for other protocols than HTTP/1.1 alone, by their names in ALPN, the preferred one first.
func (s *Side) ServerFor(protocols ...string) *tls.Config {
	conf := listenerDefaults()
	conf.NextProtos = protocols
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := s.current.Load().server.Clone()
		now.NextProtos = protocols
		return now, nil
	}
	return conf
}

// Client returns the configuration of one connection to a server of this name. A nil Side
// trusts the system's authorities and presents nothing.
func (s *Side) Client(serverName string) *tls.Config {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if s == nil {
		return conf
	}
	m := s.current.Load()
	conf.RootCAs = m.ca
	if m.cert != nil {
		conf.Certificates = []tls.Certificate{*m.cert}
	}
	return conf
}
