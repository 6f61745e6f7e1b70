package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// BenchmarkChat: a request of 1,024 tokens, with tokens from the body, and an answer of ten
// events, over gRPC on the loopback. Client and server share the processor.
func BenchmarkChat(b *testing.B) {
	w := start(b, func(_ *node.Config, c *settings) { c.Tokenizer = nil })
	for id := range uint64(8) {
		w.put(id+1, 1)
	}
	list := strings.ReplaceAll(fmt.Sprint(servicetest.Prompt(1, 1024)), " ", ",")
	text := `{"model":"m","stream":true,"prompt":` + list + `}`
	b.ReportAllocs()
	for b.Loop() {
		e, p := w.post(completionsPath, text)
		if p.status != 0 {
			b.Fatal(p)
		}
		e.response(200, sse, false)
		for range 10 {
			e.chunk(event("a"), false)
		}
		e.chunk("data: [DONE]\n\n", true)
		e.close()
	}
}

// BenchmarkTokenized: the same for a chat whose tokens the tokenizer counts.
func BenchmarkTokenized(b *testing.B) {
	for _, tokens := range []int{1024, 32768} {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			w := start(b)
			for id := range uint64(8) {
				w.put(id+1, 1)
			}
			ids := servicetest.Prompt(1, tokens)
			answer := []byte(`{"tokens":` + strings.ReplaceAll(fmt.Sprint(ids), " ", ",") + `}`)
			w.renderer.Store(new(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = out.Write(answer)
			})))
			text := chat(ids, `,"stream":true`)
			b.ReportAllocs()
			for b.Loop() {
				e := w.open()
				e.request(chatPath, false)
				for rest := text; ; rest = rest[64_000:] {
					e.body(rest[:min(len(rest), 64_000)], len(rest) <= 64_000)
					if len(rest) <= 64_000 {
						break
					}
				}
				if p := e.placement(true, false); p.status != 0 {
					b.Fatal(p)
				}
				e.response(200, sse, false)
				e.chunk(event("a"), false)
				e.chunk("data: [DONE]\n\n", true)
				e.close()
			}
		})
	}
}
