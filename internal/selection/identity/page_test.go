package identity

import (
	"os"
	"strings"
	"testing"
)

// TestPage: the table of docs/run/agents.md is that of the clients.
func TestPage(t *testing.T) {
	titles := []string{
		"Dynamo's own names", "Claude Code, a sub-agent", "Claude Code, the root", "Codex", "DeepSeek's harness",
		"OpenCode, and the generic name", "SMG's clients", "Fireworks' clients, OpenCode before 1.17",
	}
	if len(titles) != len(clients) {
		t.Fatalf("%d titles of %d clients", len(titles), len(clients))
	}
	page, err := os.ReadFile("../../../docs/run/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	list := func(headers []string) string {
		if headers == nil {
			return "–"
		}
		return "`" + strings.Join(headers, "`, else `") + "`"
	}
	var rows strings.Builder
	for i, c := range clients {
		rows.WriteString("| " + titles[i] + " | " + list(c.session) + " | " + list(c.parent) + " |\n")
	}
	if !strings.Contains(string(page), rows.String()) {
		t.Errorf("the page does not have these rows:\n%s", rows.String())
	}
}
