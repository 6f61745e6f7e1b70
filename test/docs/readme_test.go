package docs

import (
	"fmt"
	"strings"
	"testing"
)

// TestReadme proves that the README's calls work as they are printed. Building
// the program is left to the test.
func TestReadme(t *testing.T) {
	t.Parallel()
	root := rootOf(t)
	text := section(t, read(t, root, "README.md"), "One call each way")
	playText(t, root, "README.md", strings.Replace(text, "make build\n", "", 1), "8092")
}

// TestFromGo proves that the section for Go programs works as it is printed: its
// program is that of examples/lease, which runs against the service and prints
// what the section says.
func TestFromGo(t *testing.T) {
	t.Parallel()
	const page = "docs/clients.md"
	root := rootOf(t)
	text := section(t, read(t, root, page), "From Go")
	if program := block(t, text, "go"); program != read(t, root, "examples/lease/main.go") {
		t.Error("the program of the page is not that of examples/lease/main.go")
	}
	dir := playText(t, root, page, strings.ReplaceAll(text, "go run ", "go -C '"+root+"' run "), "8092")
	if want, got := block(t, text, ""), read(t, dir, "output.0"); got != want {
		t.Errorf("the program printed %q, the page says %q", got, want)
	}
}

// section is the part of a page below a heading, up to the next one.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(page, fmt.Sprintf("\n## %s\n", heading))
	if !found {
		t.Fatalf("the page has no section %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// block is the content of the first code block of a language.
func block(t *testing.T, text, language string) string {
	t.Helper()
	for i, part := range strings.Split(text, "```") {
		if i%2 == 0 {
			continue
		}
		if named, body, _ := strings.Cut(part, "\n"); named == language {
			return body
		}
	}
	t.Fatalf("no block in %q", language)
	return ""
}
