package bodyscan

import (
	"errors"
	"strings"
	"testing"
)

// TestFaultField: a fault names the described member of the outermost object,
// whether it is wrong inside, missing or repeated, and nothing where the text as
// a whole or a member that is not described is at fault.
func TestFaultField(t *testing.T) {
	for _, tc := range []struct {
		text    string
		field   string
		missing bool
	}{
		{`{"tokens":[1,-1]}`, "tokens", false},
		{`{"tokens":null}`, "tokens", false},
		{`{"tokens":[1 2]}`, "tokens", false},
		{`{"tokens":`, "tokens", false},
		{`{"ports":{"a.b":"x"}}`, "ports", false},
		{`{"inner":{"id":-1}}`, "inner", false},
		{`{"inner":{"id":1,"id":1}}`, "inner", false},
		{`{"inner":{}}`, "inner", true},
		{`{"name":"a","name":"b"}`, "name", false},
		{``, "", false},
		{`[]`, "", false},
		{`{"tokens":[]} x`, "", false},
		{`{"unknown":[1,}`, "", false},
		{`{"name"}`, "", false},
	} {
		_, err := decode(tc.text)
		var fault *Error
		if !errors.As(err, &fault) {
			t.Errorf("%s: no fault", tc.text)
			continue
		}
		if fault.Field != tc.field || fault.Missing != tc.missing {
			t.Errorf("%s: field %q, missing %t, want %q, %t", tc.text, fault.Field, fault.Missing, tc.field, tc.missing)
		}
	}

	var v inner
	var s Scanner
	var fault *Error
	if err := innerShape.Decode(&s, JSON, []byte(`{"x":1}`), &v); !errors.As(err, &fault) || fault.Field != "id" || !fault.Missing {
		t.Errorf("without a required member: %+v", fault)
	}
}

// pair is a string that goes by two names, and a required number that does.
type pair struct {
	text   string
	number uint64
}

var pairShape = NewObject(
	Field[pair]{
		Name: "text", Read: Set(func(p *pair) *string { return &p.text }, (*Scanner).String),
		Alias: "words", Again: func(s *Scanner, p *pair) {
			if s.String() != p.text {
				s.Fail("differ")
			}
		},
	},
	Field[pair]{
		Name: "number", Required: true, Read: Set(func(p *pair) *uint64 { return &p.number }, (*Scanner).Uint64),
		Alias: "count", Again: func(s *Scanner, p *pair) { p.number += s.Uint64() },
	},
)

// TestAlias: either name of a member will do, the one that comes second is read by
// Again, each name may come once, and faults name the one that has it.
func TestAlias(t *testing.T) {
	for _, tc := range []struct {
		text         string
		want         pair
		fault, field string
	}{
		{`{"number":1}`, pair{"", 1}, "", ""},
		{`{"count":1,"words":"a"}`, pair{"a", 1}, "", ""},
		{`{"words":"a","number":1,"text":"a","count":2}`, pair{"a", 3}, "", ""},
		{`{"text":"a","words":"a"}`, pair{}, "missing field `number`", "number"},
		{`{"text":"a","words":"b","number":1}`, pair{}, "differ", "words"},
		{`{"words":"b","text":"a","number":1}`, pair{}, "differ", "text"},
		{`{"number":1,"number":1}`, pair{}, "duplicate field `number`", "number"},
		{`{"count":1,"count":1}`, pair{}, "duplicate field `count`", "count"},
		{`{"count":1,"number":1,"count":1}`, pair{}, "duplicate field `count`", "count"},
		{`{"count":-1}`, pair{}, "integer out of range", "count"},
	} {
		var s Scanner
		var got pair
		err := pairShape.Decode(&s, JSON, []byte(tc.text), &got)
		var fault *Error
		switch {
		case tc.fault == "":
			if err != nil || got != tc.want {
				t.Errorf("%s: %+v, %v", tc.text, got, err)
			}
		case !errors.As(err, &fault) || !strings.HasPrefix(fault.Reason, tc.fault) || fault.Field != tc.field:
			t.Errorf("%s: %+v, want %s of %s", tc.text, fault, tc.fault, tc.field)
		}
	}
	for name, fields := range map[string][]Field[pair]{
		"alias of another's name": {{Name: "a"}, {Name: "b", Alias: "a"}},
		"alias of its own name":   {{Name: "a", Alias: "a"}},
		"the same alias for two":  {{Name: "a", Alias: "c"}, {Name: "b", Alias: "c"}},
		"name of another's alias": {{Name: "a", Alias: "b"}, {Name: "b"}},
		"too many":                make([]Field[pair], maxFields+1),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			NewObject(fields...)
		}()
	}
}
