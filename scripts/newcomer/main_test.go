package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// played are the pages of make test-newcomer.
var played = []string{"README.md", "docs/start/install.md"}

// TestPages proves that every line of a block of the pages is played or is left out with a reason,
// that the commands of a newcomer come first, and that the list has no line which its page does
// not have.
func TestPages(t *testing.T) {
	have := make(map[[2]string]bool) // page and line
	var lines []string
	for _, page := range played {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		all, err := blocks(page, string(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			for _, line := range b.lines {
				have[[2]string{page, line}] = true
				if reason(page, line) == "" {
					lines = append(lines, line)
				}
			}
		}
	}
	for i, command := range []string{"make build", "make demo ", "make test "} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], command) {
			t.Fatalf("the first commands are %q, %q is not where it belongs", lines[:min(3, len(lines))], command)
		}
	}
	for _, l := range leftOut {
		if l.why == "" {
			t.Errorf("no reason is given for %s", l.lines)
		}
		for line := range strings.SplitSeq(strings.Trim(l.lines, "\n"), "\n") {
			if !have[[2]string{l.page, line}] {
				t.Errorf("%s has no line %q any more", l.page, line)
			}
		}
	}
	script, err := os.ReadFile("../test-newcomer.sh")
	if err != nil || !strings.Contains(string(script), "./scripts/newcomer "+strings.Join(played, " ")) {
		t.Errorf("test-newcomer.sh plays other pages than %q: %v", played, err)
	}
}

// TestNewBlock proves that a block which nobody has heard of is played, in whatever form it is
// written, and that only whole lines of its page are left out.
func TestNewBlock(t *testing.T) {
	const page = "Text\n```sh\nmake new \\\n  --option\n```\n1. A list\n   ```bash\n   cat <<'X'\n     text\n   X\n   ```\n~~~\nplain\n~~~\n" +
		"```json\n{}\n```\n```sh\nsystemctl status select-service\nsystemctl status select-service --all\n```\n"
	all, err := blocks("docs/start/install.md", page)
	if err != nil {
		t.Fatal(err)
	}
	want := []block{
		{"docs/start/install.md", 3, []string{"make new \\", "  --option"}},
		{"docs/start/install.md", 8, []string{"cat <<'X'", "  text", "X"}},
		{"docs/start/install.md", 13, []string{"plain"}},
		{"docs/start/install.md", 19, []string{"systemctl status select-service", "systemctl status select-service --all"}},
	}
	if diff := cmp.Diff(want, all, cmp.AllowUnexported(block{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	text := script(all)
	for line, whether := range map[string]bool{
		"make new \\": true, "  --option": true, "  text": true, "X": true, "plain": true,
		"systemctl status select-service": false, "systemctl status select-service --all": true,
	} {
		if got := strings.Contains(text, "\n"+line+"\n"); got != whether {
			t.Errorf("%q is played: %t, want %t\n%s", line, got, whether, text)
		}
	}
	for _, faulty := range []string{"```sh\nmake\n", "```fortran\nEND\n```\n"} {
		if _, err := blocks("README.md", faulty); err == nil {
			t.Errorf("no error for %q", faulty)
		}
	}
}
