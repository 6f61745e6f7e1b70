package jsonscan

import (
	"errors"
	"testing"
)

// TestFaultField: a fault names the described member of the outermost object,
// whether it is wrong inside, missing or repeated, and nothing where the text as
// a whole or a member that nobody described is at fault.
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
	if err := innerShape.Decode(&s, []byte(`{"x":1}`), &v); !errors.As(err, &fault) || fault.Field != "id" || !fault.Missing {
		t.Errorf("without a required member: %+v", fault)
	}
}
