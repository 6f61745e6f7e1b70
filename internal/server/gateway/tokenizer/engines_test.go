package tokenizer

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestPrivateAuthority: engines behind https with a private authority (--engine-ca) give tokens, and
// are shown the token (--engine-token-file); the server of --tokenizer-url is not.
func TestPrivateAuthority(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch token := r.Header.Get("Authorization"); {
		case r.URL.Path == "/own/tokenize" && token == "", r.URL.Path == "/tokenize" && token == "Bearer secret":
			_, _ = io.WriteString(w, `{"count":1,"max_model_len":7,"tokens":[1]}`)
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	side, err := certs.Load("certificates for engines", certs.Files{CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	of := engines.Access{Dialer: engines.Dialer{Certificates: side}, Token: func() string { return "secret" }}
	r := request(t, openai.Chat, chat)
	r.Engines = slices.Values([]string{s.URL})
	for _, url := range []string{Worker, s.URL + "/own"} {
		if got, err := client(t, Options{URL: url, Protocol: VLLMTokenize, Engines: of}).Tokens(t.Context(), r); err != nil || len(got.IDs) != 1 {
			t.Errorf("%s: %v, %v", url, got, err)
		}
	}
}

// TestEndpointRules: an engine whose address the rules forbid (--allow-endpoints) is not asked, whatever its
// name; the operator's own --tokenizer-url is.
func TestEndpointRules(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"tokens":[1]}`)
	}))
	defer s.Close()
	rule, err := catalog.ParseEndpointRule("tcp://192.0.2.0/24:*")
	if err != nil {
		t.Fatal(err)
	}
	of := engines.Access{Dialer: engines.Dialer{Endpoints: catalog.EndpointPolicy{Allowed: []catalog.EndpointRule{rule}}}}
	r := request(t, openai.Chat, chat)
	for _, engine := range []string{s.URL, strings.Replace(s.URL, "127.0.0.1", "localhost", 1)} {
		r.Engines = slices.Values([]string{engine})
		_, err := client(t, Options{URL: Worker, Protocol: VLLMTokenize, Engines: of}).Tokens(t.Context(), r)
		if refused, ok := errors.AsType[*engines.AddressError](err); !ok || reasonOf(err) != Unavailable {
			t.Errorf("%s: %v, %v", engine, err, refused)
		}
	}
	if _, err := client(t, Options{URL: s.URL, Protocol: VLLMTokenize, Engines: of}).Tokens(t.Context(), r); err != nil {
		t.Errorf("--tokenizer-url: %v", err)
	}
}

// TestCredentials: those of the URL are sent.
func TestCredentials(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user+":"+password+" "+r.RequestURI != "user:pass /a%20b/tokenize" || r.Header.Get("Content-Type") != "application/json" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, `{"tokens":[1]}`)
	}))
	defer s.Close()
	url := strings.Replace(s.URL, "://", "://user:pass@", 1) + "/a%20b"
	if _, err := client(t, Options{URL: url, Protocol: VLLMTokenize}).Tokens(t.Context(), request(t, openai.Chat, chat)); err != nil {
		t.Error(err)
	}
}
