package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
)

// links refuses the link "bad", and keeps the others.
type links []string

func (l *links) Kept() iter.Seq2[catalog.Scope, json.RawMessage] {
	return func(yield func(catalog.Scope, json.RawMessage) bool) {
		for _, s := range *l {
			if !yield(sc, json.RawMessage(s)) {
				return
			}
		}
	}
}

func (l *links) Restore(_ catalog.Scope, state json.RawMessage) error {
	if string(state) == `"bad"` {
		return errors.New("bad")
	}
	*l = append(*l, string(state))
	return nil
}

// TestLinks: links are read as they were written, of scopes that are there. One that is refused leaves the others, and is counted; a
// section that is none makes the whole file corrupt.
func TestLinks(t *testing.T) {
	workers := catalog.New(catalog.Settings{}, attached{})
	if _, err := workers.Put(catalog.Record{ID: 1, Scope: sc, Endpoint: new("http://w:1"), BlockSize: new(uint32(4))}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := newWriter(&b, newHeader(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	was := &State{parts: Parts{Links: &links{`{"a":1}`, `"bad"`, `"c"`}}, log: zerolog.Nop()}
	if was.writeLinks(w) != nil || w.json(linkKind, learnedLink{catalog.Scope{Model: "gone"}, json.RawMessage(`"gone"`)}) != nil || w.end() != nil {
		t.Fatal("not written")
	}
	f, err := openBytes(t, b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var got links
	s := &State{parts: Parts{Catalog: workers, Links: &got}, log: zerolog.Nop()}
	s.restoreLinks(f)
	if n := s.failures[faultRefused].Load(); n != 1 || !slices.Equal(got, links{`{"a":1}`, `"c"`}) {
		t.Errorf("%d refused, got %q", n, got)
	}
	b.Reset()
	if w, err = newWriter(&b, newHeader(time.Now())); err != nil || w.section(linkKind, []byte(`{"Scope":7}`)) != nil || w.end() != nil {
		t.Fatal(err)
	}
	if _, err := openBytes(t, b.Bytes()); err == nil {
		t.Error("a section of another form is accepted")
	}
}
