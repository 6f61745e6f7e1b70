package attacks

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// secureService is the service behind TLS, and what its callers need.
type secureService struct {
	*e2e.Process
	url       string
	authority *e2e.Authority // of all certificates
	server    e2e.Pair
}

// serveTLS starts the service with a certificate; it demands those of its callers if
// mutual is set.
func serveTLS(t *testing.T, mutual bool, args ...string) *secureService {
	t.Helper()
	s := &secureService{authority: e2e.NewAuthority(t)}
	s.server = s.authority.Issue(t, "server", time.Now().Add(time.Hour))
	address := "127.0.0.1:" + strconv.Itoa(e2e.FreePort(t))
	_, port, _ := net.SplitHostPort(address)
	command := append([]string{
		e2e.Binary(t), "--listen", "127.0.0.1", "--port", port, "--tls-cert", s.server.Cert, "--tls-key", s.server.Key,
	}, args...)
	if mutual {
		command = append(command, "--tls-client-ca", s.authority.File)
	}
	s.Process = e2e.Start(t, e2e.Options{Command: command, Address: address})
	s.url = "https://" + address
	client := s.client(s.caller(t))
	e2e.Eventually(t, "the service answers over TLS", func() error { return s.health(t, client) })
	return s
}

// caller is a certificate that the service accepts.
func (s *secureService) caller(t *testing.T) tls.Certificate {
	return s.authority.Issue(t, "caller", time.Now().Add(time.Hour)).Load(t)
}

// client trusts the service, and shows certificates.
func (s *secureService) client(certs ...tls.Certificate) *http.Client {
	return &http.Client{Timeout: e2e.Patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.authority.Pool(), Certificates: certs}, MaxIdleConnsPerHost: 100, ForceAttemptHTTP2: true,
	}}
}

func (s *secureService) health(t *testing.T, c *http.Client) error {
	a, err := e2e.Call(t.Context(), c, http.MethodGet, s.url+"/health", nil)
	if err == nil && a.Status != http.StatusOK {
		err = errors.New(a.String())
	}
	return err
}

// shown is the serial number of the certificate that new connections are shown.
func (s *secureService) shown(t *testing.T) string {
	t.Helper()
	conn, err := tls.Dial("tcp", s.Address(), &tls.Config{RootCAs: s.authority.Pool()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// TestCallersWithoutCertificate: with --tls-client-ca nobody gets an answer who does
// not prove who he is, on any way in.
func TestCallersWithoutCertificate(t *testing.T) {
	s := serveTLS(t, true)
	foreign := e2e.NewAuthority(t)
	for name, c := range map[string]*http.Client{
		"no certificate":           s.client(),
		"of another authority":     s.client(foreign.Issue(t, "caller", time.Now().Add(time.Hour)).Load(t)),
		"expired":                  s.client(s.authority.Issue(t, "caller", time.Now().Add(-time.Minute)).Load(t)),
		"trusts another authority": {Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: foreign.Pool()}}},
	} {
		if err := s.health(t, c); err == nil {
			t.Errorf("%s: answered", name)
		}
		c.CloseIdleConnections()
	}
	if a, err := e2e.Call(t.Context(), http.DefaultClient, http.MethodGet, "http://"+s.Address()+"/health", nil); err != nil || a.Status != http.StatusBadRequest {
		t.Errorf("plain HTTP: %v, %v", a, err)
	}
	if err := s.health(t, s.client(s.caller(t))); err != nil {
		t.Errorf("the right certificate: %v", err)
	}
}

// TestCertificateRotation: certificate and key are replaced again and again under
// load, one after the other, by SIGHUP and without; no request fails on kept
// connections nor on new ones, and the new certificate is shown.
func TestCertificateRotation(t *testing.T) {
	s := serveTLS(t, true)
	var stopped atomic.Bool
	var wg sync.WaitGroup
	caller := s.caller(t)
	load := func(c *http.Client, kept bool) {
		wg.Go(func() {
			for !stopped.Load() && !t.Failed() {
				if err := s.health(t, c); err != nil {
					t.Errorf("a request failed (connection kept: %t): %v", kept, err)
				}
				if !kept {
					c.CloseIdleConnections()
				}
			}
			c.CloseIdleConnections()
		})
	}
	for range 2 {
		load(s.client(caller), true)
		load(s.client(caller), false)
	}
	for i := range 6 {
		before := s.shown(t)
		next := s.authority.Issue(t, "server", time.Now().Add(time.Hour))
		for _, file := range [][2]string{{next.Key, s.server.Key}, {next.Cert, s.server.Cert}} {
			content, err := os.ReadFile(file[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file[1], content, 0o600); err != nil {
				t.Fatal(err)
			}
			if i > 0 { // the first time without
				if err := s.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
			}
		}
		e2e.Eventually(t, "the new certificate is shown", func() error {
			if s.shown(t) == before {
				return errors.New("still the old one")
			}
			return nil
		})
	}
	stopped.Store(true)
	wg.Wait()
}

// TestStalledHandshakes: thousands of connections that begin a handshake and stop
// neither keep others out, although they take all connections that there may be, nor
// hold up the end.
func TestStalledHandshakes(t *testing.T) {
	const most = 500
	s := serveTLS(t, false, "--max-connections", strconv.Itoa(most))
	// The first bytes of a ClientHello.
	hello := "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
	for i := range 3 * most {
		conn, err := net.Dial("tcp", s.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			_, _ = io.WriteString(conn, hello) // it may be refused already
		}
	}
	client := s.client()
	defer client.CloseIdleConnections()
	e2e.Eventually(t, "an honest caller is answered", func() error { return s.health(t, client) })
	if n, err := s.Descriptors(); err != nil || n > most+100 {
		t.Errorf("%d open files, %v", n, err)
	}
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, s.Process, 0)
}

// tap passes connections on to an address and keeps what goes through.
type tap struct {
	ln net.Listener
	to string
	mu sync.Mutex // guards seen
	// seen is what went through in both directions.
	seen bytes.Buffer
}

func newTap(t *testing.T, to string) *tap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	p := &tap{ln: ln, to: to}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go p.pass(in, out)
			go p.pass(out, in)
		}
	}()
	return p
}

func (ta *tap) pass(from, to net.Conn) {
	_, _ = io.Copy(to, io.TeeReader(from, ta))
	_ = from.Close()
	_ = to.Close()
}

func (ta *tap) Write(b []byte) (int, error) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	return ta.seen.Write(b)
}

func (ta *tap) mustNotHave(t *testing.T, texts ...string) {
	t.Helper()
	ta.mu.Lock()
	defer ta.mu.Unlock()
	if ta.seen.Len() == 0 {
		t.Error("nothing went through")
	}
	for _, text := range texts {
		if strings.Contains(ta.seen.String(), text) {
			t.Errorf("%q is on the wire", text)
		}
	}
}

// TestWire: with TLS no plain bytes go between callers, replicas and the service, and
// a replica reads the index only from one that proves who it is.
func TestWire(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, true)
	const secret = "tenant-of-the-secret"
	calls := newTap(t, s.Address())
	client := s.client(s.caller(t))
	defer client.CloseIdleConnections()
	worker := e2e.Object{"worker_id": 1, "endpoint": "http://" + secret, "block_size": 4, "kv_events_endpoint": "tcp://127.0.0.1:1"}
	a, err := e2e.Call(t.Context(), client, http.MethodPost, "https://"+calls.ln.Addr().String()+"/workers", worker)
	if err != nil || a.Status != http.StatusCreated {
		t.Fatalf("%v, %v", a, err)
	}
	a, err = e2e.Call(t.Context(), client, http.MethodGet, "https://"+calls.ln.Addr().String()+"/workers", nil)
	if err != nil || !strings.Contains(string(a.Body), secret) {
		t.Fatalf("%v, %v", a, err)
	}
	calls.mustNotHave(t, "HTTP/1.1", "/workers", secret)

	token := t.TempDir() + "/token"
	if err := os.WriteFile(token, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := s.authority.Issue(t, "replica", time.Now().Add(time.Hour))
	for name, tt := range map[string]struct {
		ca   *e2e.Authority
		pair e2e.Pair
		good bool
	}{
		"right":                {s.authority, good, true},
		"no certificate":       {s.authority, e2e.Pair{}, false},
		"of another authority": {e2e.NewAuthority(t), good, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reads := newTap(t, s.Address())
			deadline := e2e.Patience // a good read ends before
			if !tt.good {
				deadline = 10 * time.Second // which is waited for
			}
			args := []string{
				"--indexer-peers", "https://" + reads.ln.Addr().String(), "--recovery-deadline", deadline.String(),
				"--peer-ca", tt.ca.File, "--peer-token-file", token,
			}
			if tt.pair.Cert != "" {
				args = append(args, "--peer-cert", tt.pair.Cert, "--peer-key", tt.pair.Key)
			}
			replica := e2e.Serve(t, nil, args...)
			if !tt.good {
				e2e.Eventually(t, "the read fails", func() error { return logged(replica.Process, "fetch: ") })
			}
			e2e.Eventually(t, "recovery ends", func() error { return recovered(t.Context(), replica, tt.good) })
			reads.mustNotHave(t, "HTTP/1.1", "/dump", secret)
			if strings.Contains(replica.Output(), secret) {
				t.Error("the token is in the log")
			}
		})
	}
}

func logged(p *e2e.Process, text string) error {
	if strings.Contains(p.Output(), text) {
		return nil
	}
	return fmt.Errorf("%q is not in the log", text)
}

// recovered reports whether the replica has ended its recovery, and from a peer or not.
func recovered(ctx context.Context, s *e2e.Service, complete bool) error {
	a, err := s.Call(ctx, http.MethodGet, "/ready", nil)
	if err != nil {
		return err
	}
	if want := fmt.Sprintf(`"complete":%t`, complete); !strings.Contains(string(a.Body), want) {
		return fmt.Errorf("%v has no %s", a, want)
	}
	return nil
}
