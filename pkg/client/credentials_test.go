package client_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

// TestCredentials: the client trusts its authority, shows its certificate and its
// token, from the options or from the environment.
func TestCredentials(t *testing.T) {
	authority := e2e.NewAuthority(t)
	later := time.Now().Add(time.Hour)
	pair := authority.Issue(t, "caller", later)
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode([]map[string]any{{
			"worker_id": 1, "model_name": r.TLS.VerifiedChains[0][0].Subject.CommonName, "endpoint": r.Header.Get("Authorization"),
		}})
	}))
	srv.TLS = &tls.Config{
		Certificates: []tls.Certificate{authority.Issue(t, "server", later).Load(t)}, ClientCAs: authority.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
	srv.StartTLS()
	defer srv.Close()
	for name, tt := range map[string]struct {
		env   map[string]string
		give  client.Credentials
		token string
	}{
		"options": {nil, client.Credentials{CA: authority.File, Cert: pair.Cert, Key: pair.Key, Token: "given"}, "Bearer given"},
		"environment": {map[string]string{
			"SELECT_SERVICE_CA": authority.File, "SELECT_SERVICE_CERT": pair.Cert, "SELECT_SERVICE_KEY": pair.Key, "SELECT_SERVICE_TOKEN_FILE": tokenFile,
		}, client.Credentials{}, "Bearer from-file"},
		"options before environment": {map[string]string{
			"SELECT_SERVICE_CA": "/nowhere", "SELECT_SERVICE_CERT": "/nowhere", "SELECT_SERVICE_TOKEN": "hidden",
		}, client.Credentials{CA: authority.File, Cert: pair.Cert, Key: pair.Key, TokenFile: tokenFile}, "Bearer from-file"},
		"no token": {nil, client.Credentials{CA: authority.File, Cert: pair.Cert, Key: pair.Key}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			c, err := client.New(srv.URL, client.Options{Credentials: tt.give})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			workers, err := c.Workers(t.Context(), client.Scope{})
			if err != nil || len(workers) != 1 || workers[0].Model != "caller" || *workers[0].Endpoint != tt.token {
				t.Errorf("%+v, %v", workers, err)
			}
		})
	}
}

// TestBadCredentials: what could never work is refused by New, and no token is quoted.
func TestBadCredentials(t *testing.T) {
	for want, opt := range map[string]client.Options{
		"/nowhere":              {Credentials: client.Credentials{CA: "/nowhere"}},
		"belong together":       {Credentials: client.Credentials{Cert: "/nowhere"}},
		"not both":              {Credentials: client.Credentials{Token: "secret", TokenFile: "/nowhere"}},
		"one line":              {Credentials: client.Credentials{Token: "secret\nsecret"}},
		"no such file":          {Credentials: client.Credentials{TokenFile: "/nowhere"}},
		"not for Options.HTTP":  {Credentials: client.Credentials{CA: "/nowhere"}, HTTP: http.DefaultClient},
		"/dev/null has no cert": {Credentials: client.Credentials{CA: "/dev/null"}},
	} {
		c, err := client.New("https://localhost", opt)
		if err == nil {
			_ = c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
