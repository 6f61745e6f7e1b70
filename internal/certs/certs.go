// Package certs holds the certificates of the process: those that its listeners show
// and demand, and those that it shows to and demands of the replicas that it reads
// from. They are files, in PEM, that may be replaced at any time.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/filewatch"
)

// Files are the paths of one side's certificates; empty for none.
type Files struct {
	Cert, Key string // what this side shows: a chain, the own certificate first, and its key
	CA        string // who may have signed what the other side shows
}

// Side is what one side of connections shows and demands. It is safe for concurrent
// use; a nil Side has no files.
type Side struct {
	files   Files
	watcher *filewatch.Watcher
	current atomic.Pointer[material]
}

// material is the content of the files.
type material struct {
	cert *tls.Certificate // nil: nothing is shown
	ca   *x509.CertPool   // nil: none is demanded of clients, the system's of servers
	// server is the configuration of listeners.
	server *tls.Config
}

// Load reads the files; what names them in errors and in the log.
// Without files the result is nil.
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

// NotAfter is when the certificate that is shown expires; the zero time for none.
func (s *Side) NotAfter() time.Time {
	if s == nil || s.current.Load().cert == nil {
		return time.Time{}
	}
	return s.current.Load().cert.Leaf.NotAfter
}

// use makes the contents of the files those of new connections.
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

// serverConfig is TLS 1.2 at least, with Go's choice of ciphers.
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

// Server is the configuration of listeners: each handshake has what is in force at
// its time.
func (s *Side) Server() *tls.Config {
	conf := listenerDefaults()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().server, nil }
	return conf
}

// ServerFor is Server for a protocol other than HTTP/1.1, by its name in ALPN.
func (s *Side) ServerFor(protocol string) *tls.Config {
	conf := listenerDefaults()
	conf.NextProtos = []string{protocol}
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := s.current.Load().server.Clone()
		now.NextProtos = []string{protocol}
		return now, nil
	}
	return conf
}

// Client is the configuration of one connection to a server of this name. A nil Side
// trusts the system's authorities and shows nothing.
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
