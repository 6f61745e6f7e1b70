package fetch_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/test/checks/e2e"
)

func writeToken(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestToken: the token goes to those who are trusted with it, and not on with a
// redirect, on the same host either.
func TestToken(t *testing.T) {
	t.Parallel()
	token, err := fetch.LoadToken("token for other replicas", writeToken(t, "secret\n"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	defer srv.Close()
	for name, tt := range map[string]struct {
		path, want string
		trusted    func(*url.URL) bool
	}{
		"trusted":    {"/", "Bearer secret", func(u *url.URL) bool { return u.Path == "/" }},
		"others":     {"/", "", func(u *url.URL) bool { return u.Path != "/" }},
		"nobody":     {"/", "", nil},
		"redirected": {"/moved", "", func(*url.URL) bool { return true }},
	} {
		c := fetch.New(idle, fetch.Identity{Token: token, Trusted: tt.trusted})
		body, err := c.Get(t.Context(), srv.URL+tt.path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		if string(got) != tt.want || err != nil {
			t.Errorf("%s: Authorization %q, want %q; %v", name, got, tt.want, err)
		}
		_ = body.Close()
		c.Close()
	}
}

// TestBadToken: what cannot be sent is refused at the start, and not quoted.
func TestBadToken(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "secret secret", "secret\nsecret", "sécret", strings.Repeat("secret", 1000)} {
		if _, err := fetch.LoadToken("token for other replicas", writeToken(t, text)); err == nil || strings.Contains(err.Error(), "cret") {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if token, err := fetch.LoadToken("token", ""); token != nil || err != nil {
		t.Errorf("no file: %v, %v", token, err)
	}
}

// TestCertificates: with certificates the other side must prove who it is, sees ours,
// and is not asked without TLS.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ours, foreign := e2e.NewAuthority(t), e2e.NewAuthority(t)
	later := time.Now().Add(time.Hour)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.VerifiedChains[0][0].Subject.CommonName)
	})
	serve := func(a *e2e.Authority) *httptest.Server {
		srv := httptest.NewUnstartedServer(handler)
		srv.TLS = &tls.Config{
			Certificates: []tls.Certificate{a.Issue(t, "server", later).Load(t)}, ClientCAs: ours.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
		}
		srv.Config.ErrorLog = nil
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv
	}
	pair := ours.Issue(t, "replica", later)
	side, err := certs.Load("certificates", certs.Files{Cert: pair.Cert, Key: pair.Key, CA: ours.File})
	if err != nil {
		t.Fatal(err)
	}
	c := fetch.New(idle, fetch.Identity{Certificates: side})
	t.Cleanup(c.Close)
	good := serve(ours)
	body, err := c.Get(t.Context(), good.URL)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := io.ReadAll(body); string(name) != "replica" || err != nil {
		t.Errorf("it saw %q, %v", name, err)
	}
	_ = body.Close()
	var unknown *tls.CertificateVerificationError
	if _, err := c.Get(t.Context(), serve(foreign).URL); !errors.As(err, &unknown) {
		t.Errorf("of another authority: %v", err)
	}
	if _, err := c.Get(t.Context(), strings.Replace(good.URL, "https:", "http:", 1)); !errors.Is(err, fetch.ErrPlain) {
		t.Errorf("plain: %v", err)
	}
}
