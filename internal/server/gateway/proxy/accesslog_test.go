package proxy_test

import (
	"strings"
	"testing"
)

// TestAccessLog: a line for each request says what became of it, and nothing that it says.
func TestAccessLog(t *testing.T) {
	w := start(t, func(s *settings) { s.Proxy.AccessLog = true })
	w.put(startEngine(t, func(s *served) {
		for s.read() != nil {
			s.write(eventsHead, chunk(event("secret")), chunk(`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}`+"\n\n"), chunk(done), lastChunk)
		}
	}))
	w.ask(request(chatPath+"?key=secret", chatBody(`,"stream":true,"user":"secret"`), "Authorization", "Bearer secret"))
	w.ask(request("/secret", "{}"))
	var lines []string
	await(t, func() string {
		for _, line := range w.log.Take(t) {
			if strings.Contains(line, "request through the proxy") {
				lines = append(lines, line)
			}
		}
		all := strings.Join(lines, "\n")
		switch {
		case len(lines) != 2, strings.Contains(all, "secret"):
			return all
		}
		for _, want := range []string{"status=200", "outcome=done", "api=chat", "model=m", "prompt_tokens=3", "completion_tokens=1", "status=404", "outcome=refused", "code=not_found"} {
			if !strings.Contains(all, want) {
				return want + " is not in " + all
			}
		}
		return ""
	})
}
