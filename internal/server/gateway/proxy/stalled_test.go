package proxy_test

import (
	"fmt"
	"testing"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/memory"
)

// TestStalledBodies: clients whose bodies do not come keep the memory of nobody else, whatever they have announced: after
// a while one of them makes room for each request. Their answers, which will not come, have none.
func TestStalledBodies(t *testing.T) {
	for name, length := range map[string]int{"long ones": 200_000, "short ones": 60_000, "tiny ones": 10} {
		t.Run(name, func(t *testing.T) {
			budget := memory.New(64 << 20)
			requests, answers := budget.Account(memory.Requests), budget.Account(memory.Answers)
			w := start(t, withMemory(budget), func(s *settings) { s.MaxStreams = 1000 })
			w.put(answering(t, jsonAnswer("{}")))
			const clients = 250 // more than 16 KiB of answers for each, and than 60 KB of bodies
			if clients*16<<10 <= answers.Limit() || clients*60_000 <= requests.Limit() {
				t.Fatalf("the accounts are too large: %d, %d", answers.Limit(), requests.Limit())
			}
			for range clients {
				w.dial().send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", chatPath, length))
			}
			await(t, func() string { // those that found no room have been refused
				if n := w.gateway.Opened(counts.Proxy); length > 10 && (n == 0 || n == clients) || length == 10 && n < clients {
					return fmt.Sprintf("%d requests are open", n)
				}
				return ""
			})
			if rest := requests.Limit() - requests.Used(); length > 10 {
				requests.Reserve(rest)
				defer requests.Release(rest)
			}
			await(t, func() string {
				if a := w.ask(request(chatPath, chatBody(""))); a.StatusCode != 200 {
					return a.body
				}
				return ""
			})
			if n := w.gateway.Opened(counts.Proxy); n < 10 {
				t.Errorf("only %d of the others are left", n)
			}
		})
	}
}
