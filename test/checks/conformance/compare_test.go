package conformance

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

func value(t *testing.T, text string) any {
	t.Helper()
	v, err := parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// TestDiff proves that answers are compared by value and as a whole, and that
// the first difference is named with its place.
func TestDiff(t *testing.T) {
	tests := map[string]struct{ want, got, diff string }{
		"key order is free":        {`{"a":1,"b":2}`, `{"b":2,"a":1}`, ""},
		"2 equals 2.0":             {`[2]`, `[2.0]`, ""},
		"rounding error":           {`0.3`, `0.30000000000000004`, ""},
		"integers are exact":       {`18446744073709551615`, `18446744073709551614`, "$: want"},
		"not a number":             {`1`, `"1"`, "$: want 1"},
		"a boolean is no number":   {`1`, `true`, "$: want 1"},
		"null is not absent":       {`{"a":null}`, `{}`, "$.a: missing"},
		"unexpected key":           {`{}`, `{"a":{"b":1}}`, "$.a: unexpected"},
		"nested":                   {`{"a":[1,{"b":2}]}`, `{"a":[1,{"b":3}]}`, "$.a[1].b: want 2, got 3"},
		"length":                   {`[1,2]`, `[1]`, "$: want 2 items, got 1"},
		"list is no object":        {`[]`, `{}`, "$: want []"},
		"null and empty":           {`null`, `[]`, "$: want null"},
		"scalar and list":          {`{"a":1}`, `{"a":[1]}`, "$.a: want 1"},
		"the same deep down":       {`{"a":[[{"b":null}]]}`, `{"a":[[{"b":null}]]}`, ""},
		"small numbers are not 0":  {`0.001`, `0`, "$: want"},
		"large float within 1e-9":  {`1000000000.5`, `1000000000.6`, ""},
		"large float out of range": {`1000.5`, `1000.6`, "$: want"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := diff(value(t, tc.want), value(t, tc.got), "$")
			if (tc.diff == "") != (got == "") || !strings.HasPrefix(got, tc.diff) {
				t.Errorf("diff = %q, want %q", got, tc.diff)
			}
		})
	}
}

// TestNormalise proves that ignored places still have to be there, and that
// lists are sorted from the inside out.
func TestNormalise(t *testing.T) {
	tests := map[string]struct {
		a, b              string
		ignore, unordered []string
		same              bool
	}{
		"ignored value":             {`{"a":1}`, `{"a":[2]}`, []string{"$.a"}, nil, true},
		"ignored but missing":       {`{"a":1}`, `{}`, []string{"$.a"}, nil, false},
		"ignored in every item":     {`[{"a":1,"b":1},{"a":2}]`, `[{"a":3,"b":1},{"a":4}]`, []string{"$[*].a"}, nil, true},
		"ignored at a negative end": {`[1,2]`, `[1,3]`, []string{"$[-1]"}, nil, true},
		"order counts":              {`[1,2]`, `[2,1]`, nil, nil, false},
		"unordered":                 {`[1,2]`, `[2,1]`, nil, []string{"$"}, true},
		"unordered 2 and 2.0":       {`[2.0,10]`, `[10,2]`, nil, []string{"$"}, true},
		"unordered, other items":    {`[1,2]`, `[2,2]`, nil, []string{"$"}, false},
		"outer after inner":         {`[[1,2],[3]]`, `[[3],[2,1]]`, nil, []string{"$", "$[*]"}, true},
		"key with a colon":          {`{"a:b":[1,2]}`, `{"a:b":[2,1]}`, nil, []string{`$["a:b"]`}, true},
		"every key":                 {`{"x":[1,2],"y":3}`, `{"x":[2,1],"y":3}`, nil, []string{"$.*"}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			original := value(t, tc.a)
			a, err := normalise(original, tc.ignore, tc.unordered)
			if err != nil {
				t.Fatal(err)
			}
			b, err := normalise(value(t, tc.b), tc.ignore, tc.unordered)
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(a, b, "$"); (d == "") != tc.same {
				t.Errorf("difference %q, want the same: %v", d, tc.same)
			}
			if d := diff(value(t, tc.a), original, "$"); d != "" {
				t.Errorf("normalise changed its input: %s", d)
			}
		})
	}
}

func TestGet(t *testing.T) {
	doc := `{"a":[{"b":1},{"b":2}],"x:y":{"z":true},"0":"zero"}`
	tests := map[string]string{ // path → value, "" for missing
		`$`:             doc,
		`$.a[0].b`:      `1`,
		`$.a[-1].b`:     `2`,
		`$["x:y"].z`:    `true`,
		`$.x:y.z`:       `true`,
		`$.0`:           `"zero"`,
		`$.a[2]`:        ``,
		`$.a[-3]`:       ``,
		`$.a.b`:         ``,
		`$[0]`:          ``,
		`$.nothing`:     ``,
		`$.a[0].b.c`:    ``,
		`$["x:y"]["z"]`: `true`,
	}
	for text, want := range tests {
		got, err := get(value(t, doc), text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, none := got.(missing)
		if none != (want == "") || (!none && !same(got, value(t, want))) {
			t.Errorf("%s = %v, want %s", text, got, want)
		}
	}
	for _, bad := range []string{"", "a", "$a", "$.", "$[x]", "$.a[", `$["a]`, "$[*]"} {
		if v, err := get(value(t, doc), bad); err == nil {
			t.Errorf("path %q: got %v, want an error", bad, v)
		}
	}
}

func TestCompare(t *testing.T) {
	tests := map[string]struct {
		want, got string // got "" is missing
		ok        bool
	}{
		"value":                   {`1`, `1.0`, true},
		"other value":             {`1`, `2`, false},
		"value, missing":          {`null`, ``, false},
		"object as a value":       {`{"a":1}`, `{"a":1}`, true},
		"object with two keys":    {`{"len":1,"x":2}`, `{"len":1,"x":2}`, true},
		"len of a list":           {`{"len":2}`, `[1,1]`, true},
		"len of a text in runes":  {`{"len":1}`, `"ü"`, true},
		"len of a number":         {`{"len":1}`, `1`, false},
		"len, missing":            {`{"len":0}`, ``, false},
		"gte":                     {`{"gte":2}`, `2`, true},
		"gte, less":               {`{"gte":2}`, `1.5`, false},
		"gte of a text":           {`{"gte":2}`, `"3"`, false},
		"lte":                     {`{"lte":2}`, `2.5`, false},
		"absent":                  {`{"absent":true}`, ``, true},
		"absent, null":            {`{"absent":true}`, `null`, false},
		"absent_or, absent":       {`{"absent_or":[]}`, ``, true},
		"absent_or, the value":    {`{"absent_or":[]}`, `[]`, true},
		"absent_or, other value":  {`{"absent_or":[]}`, `[1]`, false},
		"has an item":             {`{"has":2}`, `[1,2.0]`, true},
		"has a key":               {`{"has":"a"}`, `{"a":0}`, true},
		"has a part":              {`{"has":"el"}`, `"hello"`, true},
		"has, missing":            {`{"has":1}`, ``, false},
		"lacks":                   {`{"lacks":3}`, `[1,2]`, true},
		"lacks, but has":          {`{"lacks":2}`, `[1,2]`, false},
		"lacks, missing":          {`{"lacks":2}`, ``, false},
		"unknown operator":        {`{"near":2}`, `2`, false},
		"has a number in a text":  {`{"has":2}`, `"2"`, false},
		"lte with an odd operand": {`{"lte":"x"}`, `2`, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got any = missing{}
			if tc.got != "" {
				got = value(t, tc.got)
			}
			if fault := compare(value(t, tc.want), got); (fault == "") != tc.ok {
				t.Errorf("compare = %q, want ok: %v", fault, tc.ok)
			}
		})
	}
}

func TestExpect(t *testing.T) {
	jsonAnswer := func(status int, text string) answer {
		return answer{status: status, isJSON: true, value: value(t, text)}
	}
	tests := map[string]struct {
		expect string
		got    answer
		faults int
	}{
		"as expected":          {`{"status":200,"json":{"a":1}}`, jsonAnswer(200, `{"a":1}`), 0},
		"one of two statuses":  {`{"status":[200,409]}`, jsonAnswer(409, `{}`), 0},
		"wrong status":         {`{"status":200,"json":{"a":1}}`, jsonAnswer(500, `{"a":2}`), 1},
		"no status given":      {`{}`, jsonAnswer(200, `{}`), 1},
		"null":                 {`{"status":200,"json":null}`, jsonAnswer(200, `{}`), 1},
		"text for JSON":        {`{"status":200,"json":{}}`, answer{status: 200, text: "{}"}, 1},
		"JSON for a text":      {`{"status":200,"text":"ok"}`, jsonAnswer(200, `"ok"`), 1},
		"text":                 {`{"status":200,"text":"ok"}`, answer{status: 200, text: "ok"}, 0},
		"two places":           {`{"status":200,"assert":{"$.a":1,"$.b":2}}`, jsonAnswer(200, `{"a":2,"b":3}`), 2},
		"assert on a text":     {`{"status":200,"assert":{"$.a":1}}`, answer{status: 200, text: "a"}, 1},
		"whole text must fit":  {`{"status":400,"match":{"$.error":"bad"}}`, jsonAnswer(400, `{"error":"bad id"}`), 1},
		"match":                {`{"status":400,"match":{"$.error":"bad .*"}}`, jsonAnswer(400, `{"error":"bad id"}`), 0},
		"match on a number":    {`{"status":400,"match":{"$.error":"1"}}`, jsonAnswer(400, `{"error":1}`), 1},
		"lines":                {`{"status":200,"lines":["a.*","c"]}`, answer{status: 200, text: "ab\nc\n"}, 0},
		"line that is missing": {`{"status":200,"lines":["a","c"]}`, answer{status: 200, text: "ab\nc\n"}, 1},
		"lookahead":            {`{"status":200,"lines":["n\\{(?=[^}]*a=\"1\")(?=[^}]*b=\"2\")[^}]*\\} 2(\\.0)?"]}`, answer{status: 200, text: `n{b="2",a="1"} 2`}, 0},
		"lookahead that fails": {`{"status":200,"lines":["n\\{(?=[^}]*a=\"1\")(?=[^}]*b=\"2\")[^}]*\\} 2"]}`, answer{status: 200, text: `n{b="3",a="1"} 2`}, 1},
		"lookahead, tail":      {`{"status":200,"lines":["n(?=x)x 2"]}`, answer{status: 200, text: `nx 3`}, 1},
		"bad path":             {`{"status":200,"json":{},"ignore":["a"]}`, jsonAnswer(200, `{}`), 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var e Expect
			if err := decodeStrict([]byte(tc.expect), &e); err != nil {
				t.Fatal(err)
			}
			if faults := e.check(tc.got); len(faults) != tc.faults {
				t.Errorf("check = %q, want %d faults", faults, tc.faults)
			}
		})
	}
}

func TestMiscounted(t *testing.T) {
	want := value(t, `{"200":2,"503":[1,3],"404":0}`).(map[string]any)
	if faults := miscounted("statuses", want, map[string]int{"200": 2, "503": 3}); faults != nil {
		t.Errorf("as wanted: %q", faults)
	}
	// Too few, too many, and one that nobody asked for.
	if faults := miscounted("statuses", want, map[string]int{"200": 1, "503": 4, "500": 1}); len(faults) != 3 {
		t.Errorf("three faults: %q", faults)
	}
}

func TestEncodeMsgpack(t *testing.T) {
	tests := map[string]string{
		`[1.0,[],null]`:                       "93cb3ff000000000000090c0",
		`{"b":true,"a":"x"}`:                  "82a161a178a162c3",
		`[127,128,65536,-1,-129]`:             "957fcc80ce00010000ffd1ff7f",
		`[18446744073709551615]`:              "91cfffffffffffffffff",
		`[-9223372036854775808]`:              "91d38000000000000000",
		`{"$bytes":"00ff"}`:                   "c40200ff",
		`{"$bytes":"00","with":"more"}`:       "82a6246279746573a23030a477697468a46d6f7265",
		`["` + strings.Repeat("x", 32) + `"]`: "91d920" + strings.Repeat("78", 32),
	}
	for text, want := range tests {
		got, err := encodeMsgpack(value(t, text))
		if err != nil || hex.EncodeToString(got) != want {
			t.Errorf("%s = %x (%v), want %s", text, got, err, want)
		}
	}
	p := Payload{DPRank: json.Number("3")}
	if got, err := p.encode(); err != nil || hex.EncodeToString(got) != "93cb3ff00000000000009003" {
		t.Errorf("a batch of which only the rank is given = %x (%v)", got, err)
	}
}

// TestPlaceholders proves that what goes in comes out again.
func TestPlaceholders(t *testing.T) {
	p := &player{
		places:  map[string]string{"{pub:a}": "tcp://127.0.0.1:5555"},
		numbers: map[string]string{"{port2}": "21007"},
		vars:    map[string]string{"{var:id}": "17"},
	}
	filled, err := p.fillText([]byte(`{"e":"{pub:a}","u":"http://h:{port2}/x","{var:id}":["/r/{var:id}"],"n":18446744073709551615}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"e":"tcp://127.0.0.1:5555","u":"http://h:21007/x","17":["/r/17"],"n":18446744073709551615}`
	if d := diff(value(t, want), value(t, string(filled)), "$"); d != "" {
		t.Error(d)
	}
	for in, want := range map[string]string{
		"connect tcp://127.0.0.1:5555 failed": "connect {pub:a} failed",
		"tcp://127.0.0.1:21007":               "tcp://127.0.0.1:{port2}",
		"port 21007 and :210071":              "port 21007 and :210071",
	} {
		if got := p.unfill(in); got != want {
			t.Errorf("unfill(%q) = %q, want %q", in, got, want)
		}
	}
}
