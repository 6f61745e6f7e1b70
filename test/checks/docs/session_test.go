package docs

import (
	"strings"
	"testing"
)

// TestSession proves that blocks are paired as the page pairs them, and that no
// json block goes unchecked.
func TestSession(t *testing.T) {
	page := strings.ReplaceAll(`text
'''console
not run
'''
'''sh
one
'''
'''json
{"a": 18446744073709551615}
{"b": "…"}
'''
'''sh
two
'''
text
`, "'''", "```")
	steps, err := session(page)
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) != 2 || steps[0].script != "one\n" || steps[0].line != 6 || len(steps[0].want) != 2 || steps[1].want != nil {
		t.Fatalf("steps %+v", steps)
	}
	for output, same := range map[string]bool{
		`{"a":18446744073709551615} {"b":[1]}`:         true,
		`{"a":18446744073709551614} {"b":[1]}`:         false,
		`{"a":18446744073709551615}`:                   false,
		`{"a":18446744073709551615} {"c":1}`:           false,
		`{"a":18446744073709551615} {"b":null,"c":1}`:  false,
		`{"a":18446744073709551615} {"b":null} {"c":1`: false,
	} {
		diff, err := steps[0].difference(output)
		if (diff == "" && err == nil) != same {
			t.Errorf("%s: %v\n%s", output, err, diff)
		}
	}
	for name, broken := range map[string]string{
		"no command":    "'''json\n{}\n'''\n",
		"two answers":   "'''sh\na\n'''\n'''json\n{}\n'''\n'''json\n{}\n'''\n",
		"no JSON":       "'''sh\na\n'''\n'''json\n{...}\n'''\n",
		"without fence": "'''sh\na\n",
	} {
		if _, err := session(strings.ReplaceAll(broken, "'''", "```")); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
