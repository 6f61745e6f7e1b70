package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestTokenize: the request's body is passed on as it is, for the scope that is named or for none; the answer is
// the prompt, or why there is none, in words that are our own: those of a tokenizer may quote the prompt.
func TestTokenize(t *testing.T) {
	const prompt = `{ "messages":[{"role":"user","content":"secret"}] }`
	f := &fake{placed: tokenizer.Placed{
		Scope: catalog.Scope{Model: "m", Tenant: "t"}, LoRA: "l", CacheSalt: "s", Prompt: tokenizer.Prompt{IDs: []uint32{1, 4294967295}, ModelLength: 4096},
	}}
	var log bytes.Buffer
	h := New(f, f.conductor(), Options{Log: zerolog.New(&log), Operators: Operators{Prompts: f}})
	for _, tt := range []struct {
		path, body string
		of         *catalog.Scope
	}{
		{"/tokenize", `{"request":` + prompt + `}`, nil},
		{"/v1.3/tokenize", `{"tenant_id":"t","request":` + prompt + `,"model_name":"m"}`, &f.placed.Scope},
		{"/v1.6/tokenize", `{"routing_group":"t","request":` + prompt + `}`, &catalog.Scope{Model: "default", Tenant: "t"}},
		{"/tokenize", `{"model_name":"m","request":` + prompt + `}`, &catalog.Scope{Model: "m", Tenant: "default"}},
	} {
		got := ask(h, http.MethodPost, tt.path, "", tt.body)
		tenant := "tenant_id"
		if strings.HasPrefix(tt.path, "/v1.6") {
			tenant = "routing_group"
		}
		want := fmt.Sprintf(`{"model_name":"m",%q:"t","lora_name":"l","cache_salt":"s","max_model_len":4096,"token_ids":[1,4294967295]}`, tenant)
		if got.Code != http.StatusOK || got.Body.String() != want || f.text != prompt {
			t.Errorf("%s: %d %s of %s", tt.path, got.Code, got.Body, f.text)
		}
		if (f.of == nil) != (tt.of == nil) || f.of != nil && *f.of != *tt.of {
			t.Errorf("%s %s: for %v", tt.path, tt.body, f.of)
		}
	}
	f.placed = tokenizer.Placed{Scope: f.placed.Scope, Prompt: tokenizer.Prompt{IDs: []uint32{}}}
	if got := ask(h, http.MethodPost, "/tokenize", "", `{"request":`+prompt+`}`).Body.String(); !strings.Contains(got, `"lora_name":null,"cache_salt":null,"max_model_len":null,"token_ids":[]`) {
		t.Errorf("nothing but tokens: %s", got)
	}

	failed := func(r tokenizer.Reason) error { return &tokenizer.Error{Reason: r, Err: errors.New("secret")} }
	for _, tt := range []struct {
		err        error
		status     int
		reason     string
		retryAfter string
	}{
		{failed(tokenizer.Rejected), 400, "", ""},
		{failed(tokenizer.Unconvertible), 400, "", ""},
		{&contract.Error{Kind: contract.NotFound, Text: "no"}, 404, "", ""},
		{failed(tokenizer.None), 501, "no_tokenizer", ""},
		{failed(tokenizer.Broken), 502, "tokenizer_failed", ""},
		{failed(tokenizer.TooLarge), 502, "tokenizer_failed", ""},
		{failed(tokenizer.Unavailable), 503, "tokenizer_unavailable", "1"},
		{failed(tokenizer.Open), 503, "tokenizer_unavailable", "1"},
		{failed(tokenizer.NoMemory), 503, "no_memory", "1"},
		{failed(tokenizer.Timeout), 504, "tokenizer_timeout", ""},
	} {
		f.err = tt.err
		got := ask(h, http.MethodPost, "/tokenize", "", `{"request":`+prompt+`}`)
		reason := tt.reason
		if reason != "" {
			reason = `","reason":"` + reason + `"}`
		}
		if got.Code != tt.status || !strings.Contains(got.Body.String(), reason) || tt.reason == "" && strings.Contains(got.Body.String(), "reason") || got.Header().Get("Retry-After") != tt.retryAfter {
			t.Errorf("%v: %d %s, Retry-After %q", tt.err, got.Code, got.Body, got.Header().Get("Retry-After"))
		}
		if strings.Contains(got.Body.String()+log.String(), "secret") {
			t.Errorf("%v: what the tokenizer says is told: %s %s", tt.err, got.Body, log.String())
		}
	}
	f.err = nil
	packed := httptest.NewRequest(http.MethodPost, "/tokenize", strings.NewReader("\x80"))
	packed.Header.Set("Content-Type", "application/msgpack")
	answer := httptest.NewRecorder()
	if h.ServeHTTP(answer, packed); answer.Code != http.StatusUnsupportedMediaType {
		t.Errorf("msgpack: %d %s", answer.Code, answer.Body)
	}
	bare := New(f, f.conductor(), Options{Log: zerolog.Nop()})
	if got := ask(bare, http.MethodPost, "/tokenize", "", `{"request":{}}`); got.Code != http.StatusNotImplemented {
		t.Errorf("without a tokenizer: %d %s", got.Code, got.Body)
	}
}
