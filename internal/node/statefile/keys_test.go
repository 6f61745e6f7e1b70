package statefile

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestKeysShown: the scopes that have shown keys are read as they were written, also without
// ranks or blocks.
func TestKeysShown(t *testing.T) {
	all := []catalog.Scope{sc, {Model: "m", Tenant: "t"}}
	var b bytes.Buffer
	w, err := newWriter(&b, newHeader(written))
	if err != nil {
		t.Fatal(err)
	}
	for _, sc := range all {
		if err := w.KeysShown(sc); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	f, err := openBytes(t, b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.KeysShown(); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%v: got %+v", err, got)
	}
}
