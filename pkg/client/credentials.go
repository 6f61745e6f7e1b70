package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Credentials authenticate the service to this program and this program to the service.
// An empty field is taken from the environment variable that is named with it; if that
// is empty too, it is not used.
type Credentials struct {
	// CA is a PEM file with the certificate authorities of the service, read by New
	// (SELECT_SERVICE_CA). The default is the system's authorities.
	CA string
	// Cert and Key are the PEM files of the certificate that is shown to the service,
	// read again for each connection (SELECT_SERVICE_CERT, SELECT_SERVICE_KEY).
	Cert, Key string
	// Token is sent with each request (SELECT_SERVICE_TOKEN). Over plain HTTP it can be
	// read on the way.
	Token string
	// TokenFile is a file with the token, in place of Token; it is read again at most
	// once a second (SELECT_SERVICE_TOKEN_FILE).
	TokenFile string
}

var (
	errOwnHTTP  = errors.New("credentials: CA, Cert and Key are for the client's own connections, not for Options.HTTP")
	errHalfPair = errors.New("credentials: Cert and Key belong together")
	errTwice    = errors.New("credentials: give Token or TokenFile, not both")
)

// orEnvironment fills the empty fields from the environment. If Token or TokenFile is
// set, the variable of the other one is ignored.
func (c Credentials) orEnvironment(getenv func(string) string) Credentials {
	if c.CA == "" {
		c.CA = getenv("SELECT_SERVICE_CA")
	}
	if c.Cert == "" && c.Key == "" {
		c.Cert, c.Key = getenv("SELECT_SERVICE_CERT"), getenv("SELECT_SERVICE_KEY")
	}
	if c.Token == "" && c.TokenFile == "" {
		if c.Token = getenv("SELECT_SERVICE_TOKEN"); c.Token == "" {
			c.TokenFile = getenv("SELECT_SERVICE_TOKEN_FILE")
		}
	}
	return c
}

// tls returns the configuration of connections, nil if CA, Cert and Key are empty.
func (c Credentials) tls() (*tls.Config, error) {
	if (c.Cert == "") != (c.Key == "") {
		return nil, errHalfPair
	}
	if c.CA == "" && c.Cert == "" {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		text, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("credentials: %s has no certificate in PEM", c.CA)
		}
	}
	if c.Cert != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
			if err != nil {
				return nil, fmt.Errorf("credentials: %w", err)
			}
			return &pair, nil
		}
		if _, err := read(); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return conf, nil
}

// tokenAge is how old a token that was read from a file may be.
const tokenAge = time.Second

// token is the bearer token of requests, from a text or a file.
type token struct {
	path string // empty: the text does not change

	// mu guards text and read.
	mu   sync.Mutex
	text string
	read time.Time
}

func newToken(c Credentials) (*token, error) {
	if c.Token != "" && c.TokenFile != "" {
		return nil, errTwice
	}
	t := &token{path: c.TokenFile, text: c.Token}
	if _, err := t.get(); err != nil {
		return nil, err
	}
	if err := checkToken(t.text); err != nil {
		return nil, err
	}
	return t, nil
}

// get returns the token, empty for none. If the file cannot be read or has no valid
// token, because it is being written, the one before stays in use.
func (t *token) get() (string, error) {
	if t.path == "" {
		return t.text, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.read) > tokenAge {
		content, err := os.ReadFile(t.path)
		text := strings.TrimSpace(string(content))
		switch {
		case err == nil && text != "" && checkToken(text) == nil:
			t.text, t.read = text, now
		case t.text == "" && err != nil:
			return "", fmt.Errorf("credentials: %w", err)
		case t.text == "":
			return "", fmt.Errorf("credentials: %s has no token", t.path)
		}
	}
	return t.text, nil
}

// checkToken returns an error, which does not quote the token, if the token cannot be
// sent in a header.
func checkToken(text string) error {
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("credentials: a token is one line of visible ASCII characters without spaces")
	}
	return nil
}
