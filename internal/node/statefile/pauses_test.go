package statefile

import (
	"bytes"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestPauses: what is known of the sessions' pauses is read as it was written, of scopes that are there. What no learner can have known
// is not used, and counted; a section that is none makes the whole file corrupt; and a file of an earlier program has none.
func TestPauses(t *testing.T) {
	workers := catalog.New(catalog.Settings{}, attached{})
	if _, err := workers.Put(catalog.Record{ID: 1, Scope: sc, Endpoint: new("http://w:1"), BlockSize: new(uint32(4))}); err != nil {
		t.Fatal(err)
	}
	started := pauses.State{Horizon: time.Hour, Started: pauses.Started{Parents: 2, Children: 8}}
	known := func(returned float64) pauses.State {
		return pauses.State{Horizon: time.Hour, Classes: map[string]pauses.Known{"agent": {Samples: 20, Mu: 1, Variance: 1, Ended: 100, Returned: returned}}}
	}
	for name, tt := range map[string]struct {
		sections []learnedPauses
		share    float64
		refused  uint64
		scopes   int
		children float64 // that a session starts
	}{
		"none":                 {nil, 0.5, 0, 0, 1},
		"known":                {[]learnedPauses{{sc, known(90)}}, 91. / 102, 0, 1, 1},
		"of a scope that went": {[]learnedPauses{{sc, known(90)}, {catalog.Scope{Model: "gone"}, known(1)}}, 91. / 102, 0, 1, 1},
		"impossible":           {[]learnedPauses{{sc, known(900)}}, 0.5, 1, 0, 1},
		"kept for other times": {[]learnedPauses{{sc, pauses.State{Horizon: time.Minute}}}, 0.5, 0, 0, 1},
		"sub-agents":           {[]learnedPauses{{sc, started}}, 0.5, 0, 1, 4},
	} {
		var b bytes.Buffer
		w, err := newWriter(&b, newHeader(time.Now()))
		if err != nil {
			t.Fatal(err)
		}
		for i := range tt.sections {
			if err := w.json(pausesKind, tt.sections[i]); err != nil {
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
		now := time.Now()
		s := &State{parts: Parts{Catalog: workers, Pauses: pauses.New(now, time.Hour)}, log: zerolog.Nop()}
		s.restorePauses(f)
		if got := s.parts.Pauses.Pauses(sc, pauses.Agent, now).Share; got != tt.share {
			t.Errorf("%s: %v come back, want %v", name, got, tt.share)
		}
		if got := s.parts.Pauses.Children(sc); got != tt.children {
			t.Errorf("%s: %v children, want %v", name, got, tt.children)
		}
		if n, scopes := s.failures[faultRefused].Load(), len(s.parts.Pauses.Kept(now)); n != tt.refused || scopes != tt.scopes {
			t.Errorf("%s: %d refused, %d scopes are known", name, n, scopes)
		}
	}
	var b bytes.Buffer
	w, err := newWriter(&b, newHeader(time.Now()))
	if err != nil || w.section(pausesKind, []byte(`{"State":{"Classes":7}}`)) != nil || w.end() != nil {
		t.Fatal(err)
	}
	if _, err := openBytes(t, b.Bytes()); err == nil {
		t.Error("a section of another form is accepted")
	}
}

// attached attaches workers to nothing.
type attached struct{}

func (attached) Reconcile(_, _ *catalog.Attachment) error                { return nil }
func (attached) ReserveSlot(catalog.Scope, uint32, catalog.Rank, uint32) {}
func (attached) ReleaseSlot(catalog.Scope, catalog.Rank, uint32)         {}
