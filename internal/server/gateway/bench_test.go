package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/test/servicetest"
)

// BenchmarkChat: a request of 1,024 tokens, with tokens from the body, and an answer of ten
// events, over gRPC on the loopback. Client and server share the processor.
func BenchmarkChat(b *testing.B) {
	w := start(b, func(_ *node.Config, c *gateway.Config) { c.Tokenizer = nil })
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
