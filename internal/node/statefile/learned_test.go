package statefile

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// TestLearned: what is learned is read as it was written, and what is no JSON is refused.
func TestLearned(t *testing.T) {
	all := []learned{{Scope: sc, State: json.RawMessage(`{"version":1,"samples":7}`)}, {State: json.RawMessage(`{}`)}}
	written := func(all []learned) []byte {
		var b bytes.Buffer
		w, err := newWriter(&b, newHeader(written))
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			if err := w.Learned(&all[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.end(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	f, err := openBytes(t, written(all))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.Learned(); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%v: got %+v", err, got)
	}
	var b bytes.Buffer
	w, err := newWriter(&b, newHeader(f.Written()))
	if err != nil || w.section(learnedKind, []byte("no JSON")) != nil || w.end() != nil {
		t.Fatal(err)
	}
	if _, err := openBytes(t, b.Bytes()); err == nil {
		t.Error("a section that is no JSON is accepted")
	}
}
