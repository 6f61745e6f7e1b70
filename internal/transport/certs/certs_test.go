package certs_test

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/test/checks/e2e"
)

// handshake shakes hands over a socket and returns the errors of both sides.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		raw, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		conn := tls.Server(raw, server)
		err = conn.Handshake()
		state = conn.ConnectionState()
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		_ = conn.Close()
		done <- err
	}()
	conn, clientErr := tls.Dial("tcp", ln.Addr().String(), client)
	if clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1)) // TLS 1.3 tells a refused client here
		_ = conn.Close()
	}
	return state, <-done, clientErr
}

func mustLoad(t *testing.T, files certs.Files) *certs.Side {
	t.Helper()
	s, err := certs.Load("certificates", files)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHandshakes: who may talk to a listener that demands certificates, and whom a
// reader trusts.
func TestHandshakes(t *testing.T) {
	later := time.Now().Add(time.Hour)
	ours, foreign := e2e.NewAuthority(t), e2e.NewAuthority(t)
	own := ours.Issue(t, "server", later)
	server := mustLoad(t, certs.Files{Cert: own.Cert, Key: own.Key, CA: ours.File})
	side := func(ca string, p e2e.Pair) *tls.Config {
		return mustLoad(t, certs.Files{Cert: p.Cert, Key: p.Key, CA: ca}).Client("localhost")
	}
	good := ours.Issue(t, "replica", later)
	for name, tt := range map[string]struct {
		client *tls.Config
		good   bool
	}{
		"right":              {side(ours.File, good), true},
		"no certificate":     {side(ours.File, e2e.Pair{}), false},
		"expired":            {side(ours.File, ours.Issue(t, "replica", time.Now().Add(-time.Minute))), false},
		"of another CA":      {side(ours.File, foreign.Issue(t, "replica", later)), false},
		"trusts another CA":  {side(foreign.File, good), false},
		"trusts the system":  {(*certs.Side)(nil).Client("localhost"), false},
		"another name":       {mustLoad(t, certs.Files{Cert: good.Cert, Key: good.Key, CA: ours.File}).Client("elsewhere"), false},
		"TLS 1.1":            {&tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{good.Load(t)}, ServerName: "localhost", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, false},
		"HTTP/2 not offered": {&tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{good.Load(t)}, ServerName: "localhost", NextProtos: []string{"h2", "http/1.1"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			state, serverErr, clientErr := handshake(t, server.Server(), tt.client)
			if ok := serverErr == nil && clientErr == nil; ok != tt.good {
				t.Fatalf("server: %v, client: %v", serverErr, clientErr)
			}
			if !tt.good {
				return
			}
			if state.Version != tls.VersionTLS13 || state.NegotiatedProtocol == "h2" {
				t.Errorf("version %x, protocol %q", state.Version, state.NegotiatedProtocol)
			}
			if len(state.VerifiedChains) == 0 || state.PeerCertificates[0].Subject.CommonName != "replica" {
				t.Errorf("the client's certificate is not verified: %+v", state.PeerCertificates)
			}
		})
	}
}

// TestLoadFaults: every faulty file is named, and a key is never quoted.
func TestLoadFaults(t *testing.T) {
	a := e2e.NewAuthority(t)
	one, two := a.Issue(t, "one", time.Now().Add(time.Hour)), a.Issue(t, "two", time.Now().Add(time.Hour))
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("SECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, files := range map[string]certs.Files{
		"private key does not match": {Cert: one.Cert, Key: two.Key},
		junk + ": no certificate":    {CA: junk},
		junk + ", " + one.Key:        {Cert: junk, Key: one.Key},
		"/nowhere":                   {Cert: "/nowhere", Key: one.Key},
		"not a regular file":         {CA: t.TempDir()},
	} {
		_, err := certs.Load("certificates of the listeners", files)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%+v: %v, want %q", files, err, want)
		}
	}
	if s, err := certs.Load("x", certs.Files{}); s != nil || err != nil {
		t.Errorf("no files: %v, %v", s, err)
	}
}

// TestRotation: a new pair and new authorities are those of the next handshake; half a
// pair changes nothing.
func TestRotation(t *testing.T) {
	later := time.Now().Add(time.Hour)
	first, second := e2e.NewAuthority(t), e2e.NewAuthority(t)
	files := first.Issue(t, "server", later)
	server := mustLoad(t, certs.Files{Cert: files.Cert, Key: files.Key, CA: first.File})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Watcher().Run(ctx, zerolog.Nop()) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	try := func(a *e2e.Authority) bool {
		client := &tls.Config{RootCAs: a.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{a.Issue(t, "c", later).Load(t)}}
		_, serverErr, clientErr := handshake(t, server.Server(), client)
		return serverErr == nil && clientErr == nil
	}
	if !try(first) || try(second) {
		t.Fatal("the first authority is not the one that counts")
	}
	next := second.Issue(t, "server", later)
	replace := func(from, to string) {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, 0o600); err != nil {
			t.Fatal(err)
		}
		server.Watcher().Reload()
	}
	replace(next.Key, files.Key)
	if !try(first) {
		t.Error("half a pair is in force")
	}
	replace(next.Cert, files.Cert)
	replace(second.File, first.File)
	e2e.Eventually(t, "the second authority counts", func() error {
		if !try(second) {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	if try(first) {
		t.Error("the first authority still counts")
	}
}
