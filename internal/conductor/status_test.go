package conductor

import (
	"fmt"
	"strings"
	"testing"
)

func (st Status) unused() string {
	var parts []string
	for _, e := range st.Unused {
		parts = append(parts, fmt.Sprintf("%s=%d", e.Reason, e.Events))
	}
	return strings.Join(parts, " ")
}

// TestUnusedEvents proves that events that were not used are counted for their
// publisher by reason, that the diagnosis tells of them and of what they state, and
// that it never says that nothing came then.
func TestUnusedEvents(t *testing.T) {
	p := prompt(1, 4)
	small := engineStored(from(1, 8), nil, p, "GPU", "block_size", 2)
	mamba := engineStored(from(1, 4), nil, p, "GPU", "kv_cache_spec_kind", "mamba")
	good := engineStored(from(1, 4), nil, p, "GPU")
	for name, c := range map[string]struct {
		rank    any
		events  []event
		unused  string
		finding string
		none    string // that must not be found
	}{
		"nothing came": {finding: "no blocks have been announced yet"},
		"block size": {
			events: []event{small, small, small}, unused: "block_size_mismatch=3",
			finding: "instance i rank 0: 3 events were not used: block_size_mismatch (events of block_size 2, 4 is registered)",
		},
		"rank": {
			rank: 3, events: []event{good}, unused: "unknown_rank=1",
			finding: "instance i rank 0: 1 event was not used: unknown_rank (events of rank 3, 0 is registered)",
		},
		"group": {
			events: []event{mamba}, unused: "filtered_group=1",
			finding: "instance i rank 0: 1 event was not used: filtered_group",
		},
		"several": {
			events: []event{mamba, small, {"type": "Nonsense"}, small}, unused: "bad_tag=1 filtered_group=1 block_size_mismatch=2",
			finding: "4 events were not used: 1 bad_tag, 1 filtered_group, 2 block_size_mismatch (events of block_size 2",
		},
		"beside good ones": {
			events: []event{good, small, mamba}, unused: "filtered_group=1 block_size_mismatch=1",
			finding: "instance i rank 0: 1 event was not used: block_size_mismatch",
		},
		"as is usual": {events: []event{good, mamba}, unused: "filtered_group=1", none: "not used"},
		"by name alone": {
			events:  []event{engineStored(from(1, 4), nil, []uint32{}, "GPU")},
			finding: "4 blocks came without tokens, under names that have never come with tokens",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			reg := base("i", 0)
			reg.Type = VLLM
			publisher := w.add(reg)
			if len(c.events) > 0 {
				w.batch(publisher, c.rank, c.events...)
			}
			if got := publisher.Status().unused(); got != c.unused {
				t.Errorf("unused are %q, want %q", got, c.unused)
			}
			d := w.ask(reg.Identity, p)
			if c.finding != "" {
				d.wantFinding(t, c.finding)
			}
			if c.none != "" && d.found(c.none) || len(c.events) > 0 && d.found("announced yet") {
				t.Errorf("findings are %q", d.Findings)
			}
		})
	}
}

// TestUndecodable proves that messages of which nothing can be read are counted
// and told of.
func TestUndecodable(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 0)
	publisher := w.add(reg)
	for range 2 {
		if publisher.Apply([]byte{0xc1}, &w.work) == nil {
			t.Fatal("no error")
		}
	}
	if st := publisher.Status(); st.Undecodable != 2 || st.Unused != nil {
		t.Errorf("%d undecodable, unused %q", st.Undecodable, st.unused())
	}
	d := w.ask(reg.Identity, prompt(1, 2))
	d.wantFinding(t, "instance i rank 0: 2 messages could not be read")
	if d.found("announced yet") {
		t.Errorf("findings are %q", d.Findings)
	}
}

// TestLateIsUnused proves that late events are counted under their reason, too,
// and told of beside events that were used.
func TestLateIsUnused(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 0)
	p := prompt(1, 2)
	publisher := w.add(reg)
	w.apply(publisher, stored(rolling(p), "gpu", "token_ids", p, "event_id", 5), removed(rolling(p), "gpu", "event_id", 3))
	if st := publisher.Status(); st.unused() != "late_event_id=1" || st.LateEvents != 1 {
		t.Errorf("unused are %q, %d late", st.unused(), st.LateEvents)
	}
	w.ask(reg.Identity, p).wantFinding(t, "1 event was not used: late_event_id")
}
