package yamlread_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
)

func TestRoot(t *testing.T) {
	tests := map[string]struct {
		content string
		want    string // of the error, "" for none
		isNil   bool
	}{
		"empty":          {"", "", true},
		"comments only":  {"# nothing\n", "", true},
		"one document":   {"a: 1", "", false},
		"two documents":  {"a: 1\n---\na: 2\n", "more than one document", true},
		"broken":         {"a: [", "did not find", true},
		"broken further": {"a: 1\n---\n[", "did not find", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root, err := yamlread.Root([]byte(tc.content))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Root: error %v, want %q", err, tc.want)
			}
			if (root == nil) != tc.isNil {
				t.Errorf("Root = %v", root)
			}
		})
	}
}

// read walks a file with the key "list" of strings and the key "map" of any keys.
func read(t *testing.T, r *yamlread.Reader, content string) (got []string) {
	t.Helper()
	root, err := yamlread.Root([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	r.Mapping("", root, yamlread.Fields{
		"list": func(path string, n *yaml.Node) {
			for path, n := range r.List(path, n) {
				if !yamlread.IsString(n) {
					r.Fault(path, n, errors.New("want a string"))
				}
				got = append(got, path+"="+n.Value)
			}
		},
		"map": func(path string, n *yaml.Node) {
			for key, n := range r.Pairs(path, n) {
				got = append(got, key.Path+"="+n.Value)
			}
		},
	})
	return got
}

// TestReader proves that a file is walked in its order, that null is an absent
// value, and that an alias is followed where it may stand.
func TestReader(t *testing.T) {
	const content = "list: [a, &x b]\nmap:\n  k: *x\n  l: ~\n"
	r := yamlread.Reader{Aliases: true}
	got := read(t, &r, content)
	if want := []string{"list[0]=a", "list[1]=b", "map.k=b", "map.l=~"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	if r.Count() != 0 {
		t.Errorf("faults: %v", r.Faults())
	}
	if got := read(t, &r, "list:\nmap: ~\n"); len(got) != 0 || r.Count() != 0 {
		t.Errorf("of null values: %q, faults %v", got, r.Faults())
	}
}

// TestFaults proves that every fault is found in one pass, with its path and line.
func TestFaults(t *testing.T) {
	tests := map[string]struct {
		content string
		want    []string
	}{
		"no mapping":  {"[1]", []string{"top level (line 1): want keys with values"}},
		"unknown key": {"a: 1\nb:\n  c: 2\n", []string{"a (line 1): unknown key", "b (line 2): unknown key"}},
		"twice":       {"map:\n  a: 1\n  a: 2\nmap: {}\n", []string{"map.a (line 3): given twice", "map (line 4): given twice"}},
		"key kind":    {"[a]: 1\nmap: {[b]: 1}\n", []string{"top level (line 1): want a plain key", "map (line 2): want a plain key"}},
		"no list":     {"list: 3\n", []string{"list (line 1): want a list"}},
		"item":        {"list:\n- 2024-01-01\n- a\n- 7\n", []string{"list[0] (line 2): want a string", "list[2] (line 4): want a string"}},
		"alias":       {"list: &a [x]\nmap: *a\n", []string{"map (line 2): aliases are not supported"}},
		"merge key":   {"<<: {list: [x]}\n", []string{"<< (line 1): merge keys are not supported"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var r yamlread.Reader
			read(t, &r, tc.content)
			var got []string
			for _, err := range r.Faults() {
				got = append(got, err.Error())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("faults %q, want %q", got, tc.want)
			}
		})
	}
}

// TestMaxFaults proves that faults beyond the bound are counted, not kept.
func TestMaxFaults(t *testing.T) {
	r := yamlread.Reader{MaxFaults: 2}
	read(t, &r, "a: 1\nb: 1\nc: 1\nd: 1\n")
	if err := r.Err(); len(r.Faults()) != 2 || !strings.HasSuffix(err.Error(), "; and 2 more faults") || r.Count() != 4 {
		t.Errorf("kept %v, count %d, told %v", r.Faults(), r.Count(), err)
	}
}
