package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/simulation/engine"
)

// TestFetch proves that an engine fetches what a hint says, in both forms, over the link of the two engines, has the blocks then, and
// computes the prompt where the source is gone, or does not have what is named. The member of the body is SGLang's
// (python/sglang/srt/managers/kv_hints.py), the header that of llm-d's sidecar.
func TestFetch(t *testing.T) {
	const tokens = 31 // seven blocks, and three tokens
	body := func(first int, more string) string {
		ids := make([]string, tokens)
		for i := range ids {
			ids[i] = fmt.Sprint(first + i)
		}
		return `{"prompt":[` + strings.Join(ids, ",") + `],"max_tokens":3` + more + "}"
	}
	names := func(first int) []uint64 { // startPart's engines all have this seed
		e := engine.New(engine.Config{BlockSize: 4, CacheBlocks: 64, PrefillRate: 1e4, DecodeRate: 1e4, HashSeed: 1})
		r := engine.Request{ID: "a", Output: []uint32{1}}
		for i := range tokens {
			r.Prompt = append(r.Prompt, uint32(first+i))
		}
		if err := e.Submit(0, r); err != nil {
			t.Fatal(err)
		}
		var all []uint64
		for _, u := range e.Advance(1e9) {
			for _, ev := range u.Events {
				all = append(all, ev.Hashes...)
			}
		}
		return all
	}
	hint := func(source string, hashes []uint64) string {
		list, err := json.Marshal(hashes)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`,"kv_hints":{"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a1","action_type":"kv.fetch",`+
			`"action_version":"1.0","payload":{"block_hashes":%s,"source_control_endpoint":%q}}]}`, list, source)
	}
	const path, computes = "/v1/completions", tokens * 0.1
	gone := startPart(t, "", "a")
	gone.Close()
	for _, tt := range []struct {
		name, domain string // of the source
		ask          func(source *server, first int) (body, header string)
		fetched      int
		ttft         float64 // ms
	}{
		{"hint", "a", func(s *server, first int) (string, string) {
			return body(first, hint(s.URL+"/ranks/0", names(first))), ""
		}, 28, 28 + 0.3},
		{"header", "a", func(s *server, first int) (string, string) {
			return body(first, ""), strings.TrimPrefix(s.URL, "http://")
		}, 28, 28 + 0.3},
		{"between two domains", "b", func(s *server, first int) (string, string) {
			return body(first, hint(s.URL+"/ranks/0", names(first))), ""
		}, 28, 3*28 + 0.3},
		{"a part", "a", func(s *server, first int) (string, string) {
			return body(first, hint(s.URL+"/ranks/0", names(first)[:2])), ""
		}, 8, 8 + 2.3},
		{"evicted", "a", func(s *server, first int) (string, string) {
			return body(first, hint(s.URL+"/ranks/0", names(first+1000))), ""
		}, 0, computes},
		{"no such rank", "a", func(s *server, first int) (string, string) {
			return body(first, hint(s.URL+"/ranks/9", names(first))), ""
		}, 0, computes},
		{"gone", "a", func(_ *server, first int) (string, string) {
			return body(first, hint(gone.URL+"/ranks/0", names(first))), ""
		}, 0, computes},
		{"gone, by header", "a", func(_ *server, first int) (string, string) {
			return body(first, ""), strings.TrimPrefix(gone.URL, "http://")
		}, 0, computes},
		{"no address", "a", func(_ *server, first int) (string, string) { return body(first, hint("tcp:\\x", names(first))), "" }, 0, computes},
		{"null", "a", func(_ *server, first int) (string, string) { return body(first, `,"kv_hints":null`), "" }, 0, computes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			source, target := startPart(t, "", tt.domain), startPart(t, "", "a")
			source.complete(path, body(100, ""))
			ask, header := tt.ask(source, 100)
			var headers []string
			if header != "" {
				headers = []string{sourceHeader, header}
			}
			target.complete(path, ask, headers...)
			target.complete(path, body(100, ""))
			of := target.stats()
			if took := of.TTFTMS[0]; of.Received != tt.fetched || took < tt.ttft-0.01 || took > tt.ttft+0.01 {
				t.Errorf("%d tokens are fetched, the first token came after %g ms, want %d and %g ms", of.Received, took, tt.fetched, tt.ttft)
			}
			if of.CachedTokens != 28 { // of the second request
				t.Errorf("%d tokens are cached afterwards", of.CachedTokens)
			}
		})
	}
	// An engine that prefills for another one fetches, too: the sidecar passes the header on.
	source, prefill, decode := startPart(t, "", "a"), startPart(t, RolePrefill, "a"), startPart(t, RoleDecode, "a")
	source.complete(path, body(100, ""))
	decode.complete(path, body(100, ""), prefillerHeader, strings.TrimPrefix(prefill.URL, "http://"), sourceHeader, strings.TrimPrefix(source.URL, "http://"))
	if got := prefill.stats().Received; got != 28 {
		t.Errorf("the engine that prefills has fetched %d tokens", got)
	}
	if status, text := source.post("/kv_cache", "{"); status != http.StatusBadRequest {
		t.Errorf("no JSON: %d %s", status, text)
	}
}
