package yamlread_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// word is one of two texts, as written.
type word string

func (w *word) UnmarshalText(text []byte) error {
	*w = word(text)
	if *w != "on" && *w != "7" {
		return errors.New("want on or 7")
	}
	return nil
}

// share has bounds.
type share float64

func (s share) Check() error {
	if s > 1 {
		return errors.New("want at most 1")
	}
	return nil
}

type named struct {
	yamlread.Place
	Name string `yaml:"name,required"`
}

type item struct {
	named
	Share share   `yaml:"share,null"`
	Limit *uint32 `yaml:"limit"`
}

type content struct {
	List  []string          `yaml:"list,null"`
	Items []item            `yaml:"items"`
	Ports map[uint32]string `yaml:"ports"`
	Names map[string]word   `yaml:"names"`
	Word  *word             `yaml:"word"`
	Yes   bool              `yaml:"yes"`
	Big   uint64            `yaml:"big"`
	Raw   *yaml.Node        `yaml:"raw"`
	Other string            // no key
}

func decode(t *testing.T, r *yamlread.Reader, text string, to any) bool {
	t.Helper()
	root, err := yamlread.Root([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r.Decode("", root, to)
}

// TestDecode proves that each kind of variable takes its values, and that an alias is followed where it may stand.
func TestDecode(t *testing.T) {
	const text = `
list: [a, &x "7"]
items: [{name: *x, share: 0x1, limit: 0x10}, {name: b, share: ~, limit: ~}]
ports: {1: a, "2": b}
names: {n: 7}
word: on
yes: True
big: 18446744073709551615
raw: *x
`
	r, got := yamlread.Reader{Aliases: true}, content{Items: []item{{Share: 1}}}
	if decode(t, &r, text, &got); r.Count() > 0 {
		t.Fatal(r.Err())
	}
	if at := got.Items[1].Place; at.Path != "items[1]" || at.Node.Line != 3 {
		t.Errorf("place %+v", at)
	}
	if got.Raw.Value != "7" {
		t.Errorf("raw %+v", got.Raw)
	}
	got.Raw, got.Items[0].Place, got.Items[1].Place = nil, yamlread.Place{}, yamlread.Place{}
	want := content{
		List:  []string{"a", "7"},
		Items: []item{{named{Name: "7"}, 1, new(uint32(16))}, {named{Name: "b"}, 0, nil}},
		Ports: map[uint32]string{1: "a", 2: "b"}, Names: map[string]word{"n": "7"}, Word: new(word("on")), Yes: true, Big: 1<<64 - 1,
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(item{})); d != "" {
		t.Error(d)
	}
}

// TestGiven proves what a value leaves as it is: an absent key and null in a pointer; and that a
// pointer takes a value in its variable.
func TestGiven(t *testing.T) {
	var r yamlread.Reader
	list, limit := []string{"default"}, uint32(9)
	got := struct {
		List    []string `yaml:"list,null"`
		Limit   *uint32  `yaml:"limit"`
		Another *uint32  `yaml:"another"`
	}{list, &limit, &limit}
	if !decode(t, &r, "list: ~\nlimit:\n", &got) || !slices.Equal(got.List, list) || got.Limit != &limit || limit != 9 {
		t.Errorf("%+v, %v", got, r.Err())
	}
	if !decode(t, &r, "another: 8", &got) || limit != 8 {
		t.Errorf("%d, %v", limit, r.Err())
	}
}

// TestFaults proves that every fault is found in one pass, with its path and line.
func TestFaults(t *testing.T) {
	const wantString = ": want a string; put numbers, dates and words like true in quotes"
	tests := map[string]struct {
		content string
		want    []string
	}{
		"no mapping":   {"[1]", []string{"top level (line 1): want keys with values"}},
		"null":         {"~", []string{"top level (line 1): want keys with values"}},
		"unknown key":  {"a: 1\nitems:\n- {c: 2, name: x}\n", []string{"a (line 1): unknown field `a`, expected one of `list`, `items`, `ports`, `names`, `word`, `yes`, `big`, `raw`", "items[0].c (line 3): unknown field `c`, expected one of `name`, `share`, `limit`"}},
		"no key":       {"Other: x", []string{"Other (line 1): unknown field `Other`, expected one of `list`, `items`, `ports`, `names`, `word`, `yes`, `big`, `raw`"}},
		"long key":     {strings.Repeat("x", 300) + "ä: 1", []string{strings.Repeat("x", 256) + "… (line 1): unknown field `" + strings.Repeat("x", 256) + "…`, expected one of `list`, `items`, `ports`, `names`, `word`, `yes`, `big`, `raw`"}},
		"missing":      {"items:\n- {limit: -1}\n- 7", []string{"items[0].limit (line 2): want a whole number, at most 4294967295", "items[0].name (line 2): is missing", "items[1] (line 3): want keys with values"}},
		"twice":        {"names:\n  a: on\n  a: on\nnames: {}\n", []string{"names.a (line 3): given twice", "names (line 4): given twice"}},
		"ranks twice":  {"ports: {1: a, 0x1: b}", []string{"ports.0x1 (line 1): given twice"}},
		"key kind":     {"[a]: 1\nnames: {[b]: 1, 7: on}\n", []string{"top level (line 1): want a plain key", "names (line 2): want a plain key", "names.7 (line 2)" + wantString}},
		"no list":      {"list: 3\nitems:\n", []string{"list (line 1): want a list", "items (line 2): want a list"}},
		"item":         {"list:\n- 2024-01-01\n- a\n- 7\n", []string{"list[0] (line 2)" + wantString, "list[2] (line 4)" + wantString}},
		"ranks":        {"ports: {x: a, 01: b, 4294967296: c, 1: 7}", []string{"ports.x (line 1): want a whole number, at most 4294967295", "ports.01 (line 1): want a whole number, at most 4294967295", "ports.4294967296 (line 1): want a whole number, at most 4294967295", "ports.1 (line 1)" + wantString}},
		"words":        {"word: off\nnames: {a: ~, b: [on]}", []string{"word (line 1): want on or 7", "names.a (line 2): want a text", "names.b (line 2): want a text"}},
		"bounds":       {"items: [{name: a, share: 1.5}, {name: b, share: .nan}, {name: c, share: '1'}]", []string{"items[0].share (line 1): want at most 1", "items[1].share (line 1): want a finite number", "items[2].share (line 1): want a finite number"}},
		"whole":        {"big: 1.0\nyes: on", []string{"big (line 1): want a whole number, at most 18446744073709551615", "yes (line 2): want true or false"}},
		"octal":        {"big: 010", []string{"big (line 1): want a whole number, at most 18446744073709551615"}},
		"alias":        {"list: &a [x]\nnames: *a\n", []string{"names (line 2): aliases are not supported"}},
		"aliased text": {"list: [&a x, *a]\nword: *a", []string{"list[1] (line 1): aliases are not supported", "word (line 2): aliases are not supported"}},
		"merge key":    {"<<: {list: [x]}\n", []string{"<< (line 1): merge keys are not supported"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var r yamlread.Reader
			if decode(t, &r, tc.content, new(content)) {
				t.Error("Decode found no fault")
			}
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
	decode(t, &r, "a: 1\nb: 1\nc: 1\nd: 1\n", new(struct{}))
	if err := r.Err(); len(r.Faults()) != 2 || !strings.HasSuffix(err.Error(), "`b`, there are no fields; and 2 more faults") || r.Count() != 4 {
		t.Errorf("kept %v, count %d, told %v", r.Faults(), r.Count(), err)
	}
}
