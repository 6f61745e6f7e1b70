package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// say is a prompt as Tokenize tells it, or what kind of error there is.
func (w *world) say(of *catalog.Scope, body string) string {
	said := ""
	err := w.prompts.Tokenize(w.T.Context(), nil, of, []byte(body), func(p *tokenizer.Placed) {
		said = fmt.Sprintf("%s/%s %q %q %v", p.Scope.Model, p.Scope.Tenant, p.LoRA, p.CacheSalt, p.IDs)
	})
	var (
		fault   *bodyscan.Error
		known   *contract.Error
		failure *tokenizer.Error
	)
	switch {
	case errors.As(err, &fault):
		return "fault"
	case errors.As(err, &known):
		return map[contract.Kind]string{contract.BadRequest: "bad request", contract.NotFound: "not found"}[known.Kind]
	case errors.As(err, &failure):
		return string(failure.Reason)
	case err != nil:
		w.T.Errorf("%s: %v", body, err)
	}
	return said
}

// TestPrompts: what is said of a prompt is what the picker looks up, whichever form of a request it
// comes in; nothing of it is counted or logged.
func TestPrompts(t *testing.T) {
	w := start(t)
	w.put(1, 1, func(r *catalog.Record) { r.Adapters = []string{"a"} })
	own := servicetest.Scope
	base := fmt.Sprintf("%s/%s ", own.Model, own.Tenant)
	for _, tt := range []struct {
		of         *catalog.Scope
		body, want string
	}{
		{nil, `{"model":"m","messages":[{"role":"user","content":"1 2 3"}]}`, base + `"" "" [1 2 3]`},
		{&own, `{"messages":[{"role":"user","content":"1 2 3"}]}`, base + `"" "" [1 2 3]`},
		{&own, `{"system":"1","messages":[{"role":"user","content":"2 3"}],"max_tokens":9}`, base + `"" "" [1 2 3]`},
		{&own, `{"input":"4 5"}`, base + `"" "" [4 5]`},
		{&own, `{"prompt":"6 7"}`, base + `"" "" [6 7]`},
		{&own, `{"messages":[{"role":"user","content":"9"}],"kv_transfer_params":{"prompt_token_ids":[6,7]}}`, base + `"" "" [6 7]`},
		{&own, `{"prompt":"6 7","truncate_prompt_tokens":1}`, base + `"" "" [7]`},
		{&own, `{"prompt":[6,7,8],"truncate_prompt_tokens":2}`, base + `"" "" [7 8]`},
		{nil, `{"model":"a","prompt":"1","cache_salt":"s"}`, base + `"a" "s" [1]`},
		{nil, `{"model":"m:a","prompt":"1"}`, base + `"a" "" [1]`},
		{&own, `{"prompt":"1","lora_path":"a","nvext":{"cache_salt":"n"}}`, base + `"a" "n" [1]`},

		{&own, `{"prompt":["1","2"]}`, "bad request"},
		{&own, `{"prompt":"1","cache_salt":"/"}`, "bad request"},
		{&own, `{}`, "bad request"},
		{&own, `[]`, "fault"},
		{&own, `{"messages":5}`, "fault"},
		{nil, `{"model":"unknown","prompt":"1"}`, "not found"},
		{&catalog.Scope{Model: "unknown", Tenant: "default"}, `{"prompt":"1"}`, "not found"},
		{&own, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}`, "unconvertible"},
	} {
		if got := w.say(tt.of, tt.body); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.body, got, tt.want)
		}
	}
	for status, want := range map[int]string{400: "rejected", 500: "broken", 503: "unavailable"} {
		refuses := http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			out.WriteHeader(status)
			_, _ = io.Copy(out, r.Body) // it quotes the prompt
		})
		w.renderer.Store(&refuses)
		if got := w.say(&own, `{"prompt":"secret"}`); got != want {
			t.Errorf("a tokenizer that answers %d is %q, want %q", status, got, want)
		}
	}
	if n := w.count("tokenizer_seconds_count", ""); n != 0 {
		t.Errorf("%v prompts are counted", n)
	}
	if lines := w.log.Take(t); strings.Contains(strings.Join(lines, ""), "secret") {
		t.Errorf("the log has the prompt: %s", lines)
	}
}

// TestPromptsBounded: of many prompts at a time only some are asked for; the others are refused as for a
// tokenizer without room, and a caller who has gone frees its place.
func TestPromptsBounded(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	asked := make(chan struct{}, 100)
	hangs := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then the server does not notice that its client has gone
		asked <- struct{}{}
		<-r.Context().Done()
	})
	w.renderer.Store(&hangs)
	ctx, cancel := context.WithCancel(t.Context())
	const most = 4
	ended := make(chan error, most)
	for range most {
		go func() {
			ended <- w.prompts.Tokenize(ctx, nil, &servicetest.Scope, []byte(`{"prompt":"1"}`), func(*tokenizer.Placed) { t.Error("it was answered") })
		}()
	}
	for range most {
		<-asked
	}
	if got := w.say(&servicetest.Scope, `{"prompt":"1"}`); got != "unavailable" {
		t.Errorf("one more is %q", got)
	}
	if got := w.say(&servicetest.Scope, `{"prompt":[1]}`); !strings.HasSuffix(got, "[1]") { // nobody is asked
		t.Errorf("token ids are %q", got)
	}
	cancel()
	for range most {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	w.renderer.Store(nil)
	if got := w.say(&servicetest.Scope, `{"prompt":"1"}`); !strings.HasSuffix(got, "[1]") {
		t.Errorf("afterwards it is %q", got)
	}
}
