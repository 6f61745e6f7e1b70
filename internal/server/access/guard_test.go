package access

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
)

func sum(token string) string {
	s := sha256.Sum256([]byte(token))
	return hex.EncodeToString(s[:])
}

// guard returns a guard of a file with the content, and the file.
func guard(t *testing.T, content string) (*Guard, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	write(t, path, content)
	g, err := New(path)
	if err != nil {
		t.Fatal(err)
	}
	return g, path
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func entry(name, token string, more ...string) string {
	return fmt.Sprintf("- name: %s\n  sha256: %s\n  %s\n", name, sum(token), strings.Join(more, "\n  "))
}

func with(headers ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func bearer(token string) *http.Request { return with("Authorization", "Bearer "+token) }

func status(err error) int {
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		return denied.Status
	}
	return 200
}

// TestRoles: which roles a token with one role has (decision X3).
func TestRoles(t *testing.T) {
	has := map[Role]string{
		Read:    "public read",
		Call:    "public read call",
		Operate: "public read call operate",
		Peer:    "public peer",
		Metrics: "public metrics",
	}
	file := "tokens:\n"
	for _, r := range Grantable {
		file += entry("n", r.String(), "roles: ["+r.String()+"]")
	}
	g, _ := guard(t, file)
	for own, want := range has {
		for _, role := range append([]Role{Public}, Grantable...) {
			_, err := g.Admit(bearer(own.String()), role, false)
			if allowed := strings.Contains(" "+want+" ", " "+role.String()+" "); allowed != (err == nil) || err != nil && status(err) != 403 {
				t.Errorf("%v on a route for %v: %v", own, role, err)
			}
		}
	}
}

// TestTokens: what is a token and what is none.
func TestTokens(t *testing.T) {
	g, _ := guard(t, "tokens:\n"+entry("a", "right", "roles: [call]"))
	for name, tt := range map[string]struct {
		r    *http.Request
		want int
	}{
		"right":             {bearer("right"), 200},
		"scheme in capital": {with("Authorization", "BEARER right"), 200},
		"none":              {with(), 401},
		"wrong":             {bearer("wrong"), 401},
		"a part":            {bearer("righ"), 401},
		"more":              {bearer("right1"), 401},
		"its hash":          {bearer(sum("right")), 401},
		"empty":             {bearer(""), 401},
		"basic":             {with("Authorization", "Basic right"), 401},
		"no scheme":         {with("Authorization", "right"), 401},
		"two headers":       {with("Authorization", "Bearer right", "Authorization", "Bearer right"), 401},
		"empty header":      {with("Authorization", ""), 401},
		"long":              {bearer(strings.Repeat("x", 60_000)), 401},
	} {
		c, err := g.Admit(tt.r, Call, false)
		if status(err) != tt.want || (err == nil) != (c != nil) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if denied, ok := errors.AsType[*DeniedError](err); ok && !strings.HasPrefix(denied.Challenge, "Bearer ") {
			t.Errorf("%s: no challenge", name)
		}
	}
	var nobody *Guard
	if c, err := nobody.Admit(bearer("wrong"), Operate, false); c != nil || err != nil {
		t.Errorf("without a file: %v, %v", c, err)
	}
}

// TestPublic: a public route needs no token, but takes no wrong one.
func TestPublic(t *testing.T) {
	g, _ := guard(t, "")
	if c, err := g.Admit(with(), Public, false); err != nil || c.May(Read) {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := g.Admit(bearer("wrong"), Public, false); status(err) != 401 {
		t.Error(err)
	}
}

// TestScope: what callers with a model, a tenant or both see.
func TestScope(t *testing.T) {
	of := func(model, tenant string) *Caller {
		var f catalog.ScopeFilter
		if model != "" {
			f.Model = &model
		}
		if tenant != "" {
			f.Tenant = &tenant
		}
		return &Caller{scope: f}
	}
	names := []string{"", "a", "b"}
	for _, model := range names {
		for _, tenant := range names {
			c := of(model, tenant)
			for _, m := range names {
				for _, tn := range names {
					asked := of(m, tn).scope
					narrowed, err := c.Narrow(asked)
					covers := c.Covers(asked)
					conflict := model != "" && m != "" && m != model || tenant != "" && tn != "" && tn != tenant
					if (err != nil) != conflict {
						t.Errorf("%q %q narrows %q %q: %v", model, tenant, m, tn, err)
					}
					wide := false
					for _, sm := range names[1:] {
						for _, st := range names[1:] {
							s := catalog.Scope{Model: sm, Tenant: st}
							own := (model == "" || model == sm) && (tenant == "" || tenant == st)
							meant := (m == "" || m == sm) && (tn == "" || tn == st)
							if c.Sees(s) != own {
								t.Errorf("%q %q sees %v", model, tenant, s)
							}
							if err == nil && s.Matches(narrowed.Model, narrowed.Tenant) != (own && meant) {
								t.Errorf("%q %q narrows %q %q to what has %v", model, tenant, m, tn, s)
							}
							wide = wide || meant && !own
						}
					}
					if (covers != nil) != wide {
						t.Errorf("%q %q covers %q %q: %v", model, tenant, m, tn, covers)
					}
				}
			}
		}
	}
	g, _ := guard(t, "tokens:\n"+entry("a", "t", "roles: [operate]", "tenant: x"))
	if _, err := g.Admit(bearer("t"), Operate, false); status(err) != 403 {
		t.Errorf("a route without scopes: %v", err)
	}
	if _, err := g.Admit(bearer("t"), Operate, true); err != nil {
		t.Error(err)
	}
}

// TestFaults: a file is read strictly, and each fault has its line; no text of the
// file that may be a secret is repeated.
func TestFaults(t *testing.T) {
	ok := entry("a", "t", "roles: [read]")
	for file, want := range map[string]string{
		"[]":                   "top level (line 1): want keys with values",
		"token: []":            "token (line 1): unknown key",
		"tokens: {}":           "tokens (line 1): want a list",
		"tokens: [x]":          "tokens[0] (line 1): want keys with values",
		"tokens:\n- name: a\n": "tokens[0].sha256 (line 2): is missing",
		"tokens:\n" + ok + ok:  "tokens[1].sha256 (line 5): another entry has the same",
		"tokens:\n- name: a\n  sha256: secret\n  roles: [read]\n":          "tokens[0].sha256 (line 3): want the SHA-256 of the token, 64 hexadecimal digits",
		"tokens:\n- sha256: " + sum("t") + "\n  roles: [read]\n":           "tokens[0].name (line 2): is missing",
		"tokens:\n" + entry("a", "t", "roles: []"):                         "tokens[0].roles (line 4): want at least one role",
		"tokens:\n" + entry("a", "t"):                                      "tokens[0].roles (line 2): is missing",
		"tokens:\n" + entry("a", "t", "roles: [root]"):                     "tokens[0].roles[0] (line 4): want one of read, call, operate, peer, metrics",
		"tokens:\n" + entry("a", "t", "roles: [public]"):                   "tokens[0].roles[0] (line 4): want one of read, call, operate, peer, metrics",
		"tokens:\n" + entry("a", "t", "roles: [peer]", "tenant: x"):        "tokens[0].roles (line 2): the roles peer and metrics have no model or tenant",
		"tokens:\n" + entry("a", "t", "roles: [read]", "tenant: ''"):       "tokens[0].tenant (line 5): want a text",
		"tokens:\n" + entry("a", "t", "roles: [read]", "tenent: x"):        "tokens[0].tenent (line 5): unknown key",
		"tokens:\n" + entry("a", "t", "roles: [read]", "roles: [call]"):    "tokens[0].roles (line 5): given twice",
		"names:\n- name: a\n  sha256: x\n  roles: [read]\n":                "names[0].sha256 (line 3): unknown key",
		"names:\n- {name: a, roles: [read]}\n- {name: a, roles: [call]}\n": "names[1].name (line 3): another entry has the same",
	} {
		_, err := decode("f", []byte(file))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), sum("t")) {
			t.Errorf("%q:\n got %v\nwant %s", file, err, want)
		}
	}
	var many strings.Builder
	many.WriteString("tokens:\n")
	for i := range maxTokens + 1 {
		many.WriteString(entry("a", fmt.Sprint(i), "roles: [read]"))
	}
	if _, err := decode("f", []byte(many.String())); err == nil || !strings.Contains(err.Error(), "more than 1024 entries") {
		t.Error(err)
	}
	if _, err := New(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file")
	}
}

// TestNewToken: the entry of a new token lets that token in, and has nothing of it.
func TestNewToken(t *testing.T) {
	for _, g := range []Grant{
		{Name: "gate way: \"x\"", Roles: []Role{Read, Metrics}},
		{Name: "t", Roles: []Role{Operate}, Tenant: "acme # 1", Model: "m\nn"},
	} {
		token := NewToken()
		entry, err := g.Entry(token)
		if err != nil {
			t.Fatal(err)
		}
		guard, _ := guard(t, "tokens:\n"+entry)
		c, err := guard.Admit(bearer(token), g.Roles[0], true)
		if err != nil || c.Name != g.Name || strings.Contains(entry, token) {
			t.Errorf("%q: %v, %v", entry, c, err)
		}
		if f := c.Scope(); g.Tenant != "" && (*f.Tenant != g.Tenant || *f.Model != g.Model) {
			t.Errorf("scope %v", f)
		}
	}
	if _, err := (Grant{Name: "x", Roles: []Role{Peer}, Model: "m"}).Entry("t"); err == nil {
		t.Error("a token that the file may not have")
	}
}

// TestFailures: wrong tokens beyond the burst are answered 429, a right one never,
// and requests without a token are no guesses. The allowance comes back.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := guard(t, "tokens:\n"+entry("a", "right", "roles: [call]"))
		ask := func(address string, r *http.Request) int {
			r.RemoteAddr = address
			_, err := g.Admit(r, Call, false)
			return status(err)
		}
		const at, other = "192.0.2.1:1234", "192.0.2.2:1234"
		for i := range failureBurst {
			if got := ask(at, bearer("wrong")); got != 401 {
				t.Fatalf("failure %d: %d", i, got)
			}
		}
		for range 10 {
			if got := ask("192.0.2.1:999", bearer("wrong")); got != 429 {
				t.Fatalf("beyond the burst: %d", got)
			}
		}
		for r, want := range map[*http.Request]int{bearer("right"): 200, with(): 401} {
			if got := ask(at, r); got != want {
				t.Errorf("beside it: %d, want %d", got, want)
			}
		}
		if got := ask(other, bearer("wrong")); got != 401 { // unless their hashes meet, 1 in 4096
			t.Logf("another address: %d", got)
		}
		time.Sleep(failureEvery)
		if first, second := ask(at, bearer("wrong")), ask(at, bearer("wrong")); first != 401 || second != 429 {
			t.Errorf("after %v: %d, %d", failureEvery, first, second)
		}
	})
}

// TestReload: what the file says counts without a restart; a broken or lost one
// changes nothing; the log has no hash.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		g, path := guard(t, "tokens:\n"+entry("a", "first", "roles: [call]"))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = g.Watcher().Run(ctx, zerolog.New(&log)) }()
		reload := func() { g.Watcher().Reload(); synctest.Wait() }
		valid := func(token string) bool { _, err := g.Identify(bearer(token)); return err == nil }

		write(t, path, "tokens:\n"+entry("a", "second", "roles: [call]"))
		reload()
		if valid("first") || !valid("second") {
			t.Error("the change did not count")
		}
		write(t, path, "tokens: broken")
		reload()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		reload()
		if !valid("second") {
			t.Error("a broken or lost file counted")
		}
		write(t, path, "")
		reload()
		if valid("second") {
			t.Error("an empty file has callers")
		}
		stop()
		<-ended
		if text := log.String(); strings.Count(text, `"who":"file","action":"reload tokens file"`) != 4 || strings.Contains(text, sum("second")) {
			t.Errorf("log:\n%s", text)
		}
	})
}

// TestCertificates: the names of a verified certificate have roles, until it expires;
// a token goes before it.
func TestCertificates(t *testing.T) {
	g, _ := guard(t, "tokens:\n"+entry("a", "t", "roles: [read]")+
		"names:\n- {name: cn, roles: [peer]}\n- {name: 'spiffe://x/y', roles: [operate]}\n- {name: dns.example, roles: [call], tenant: z}\n")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	g.now = func() time.Time { return now }
	cert := func(cn string, change func(*x509.Certificate)) *http.Request {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: cn}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
		change(c)
		r := with()
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
		return r
	}
	asIs := func(*x509.Certificate) {}
	name := func(r *http.Request) string {
		c, err := g.Identify(r)
		if err != nil {
			return fmt.Sprint(status(err))
		}
		return c.Name
	}
	unverified := cert("cn", asIs)
	unverified.TLS.VerifiedChains = nil
	withToken := cert("cn", asIs)
	withToken.Header.Set("Authorization", "Bearer t")
	wrongToken := cert("cn", asIs)
	wrongToken.Header.Set("Authorization", "Bearer u")
	uri, _ := url.Parse("spiffe://x/y")
	for want, r := range map[string]*http.Request{
		"cn":           cert("cn", asIs),
		"spiffe://x/y": cert("cn", func(c *x509.Certificate) { c.URIs = []*url.URL{uri} }),
		"dns.example":  cert("", func(c *x509.Certificate) { c.DNSNames = []string{"other", "dns.example"} }),
		"a":            withToken,
	} {
		if got := name(r); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for what, r := range map[string]*http.Request{
		"unknown":     cert("x", asIs),
		"unverified":  unverified,
		"wrong token": wrongToken,
		"expired":     cert("cn", func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Second) }),
		"early":       cert("cn", func(c *x509.Certificate) { c.NotBefore = now.Add(time.Second) }),
	} {
		if got := name(r); got != "401" {
			t.Errorf("%s: %s", what, got)
		}
	}
}
