package conductor

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestOwnerBound: one publisher cannot bring up owners without end; what is beyond
// the bound is dropped and counted, and the rest works on.
func TestOwnerBound(t *testing.T) {
	w := newWorld(t)
	p, q := w.add(base("i", 0)), w.add(base("j", 0))
	h := rolling(prompt(1, 1))
	for k := range maxOwners + 5 {
		w.apply(p, stored(h, "gpu", "backend_id", fmt.Sprint("b", k)))
	}
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooMany: 5})
	w.apply(p, stored(h, "gpu", "backend_id", "new", "model_name", "never seen"))
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooMany: 1})
	w.apply(q, stored(h, "gpu"))
	st := w.Stats()
	if st.Owners != maxOwners+1 || st.Spaces != 1 || st.Namespaces != 1 {
		t.Errorf("Stats = %+v", st)
	}
	w.apply(p, removed(h, "gpu", "backend_id", "b7"))
	w.sweep()
	w.apply(p, stored(h, "gpu", "backend_id", "new"))
	w.wantReasons(nil)
	w.want(p.Identity, prompt(1, 1), "i 4 GPU=4 0:4", "j 4 GPU=4 0:4")
}

// TestStreamBound: a publisher has so many event-id streams and no more; events
// without a number need none.
func TestStreamBound(t *testing.T) {
	length.Sequential(t)
	w := newWorld(t)
	p := w.add(base("i", 0))
	h := rolling(prompt(1, 1))
	events := make([]event, 0, maxStreams+3)
	for k := range maxStreams + 3 {
		events = append(events, stored(h, "gpu", "lora_name", fmt.Sprint(k), "event_id", k))
	}
	w.apply(p, events...)
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooMany: 3})
	if st := p.Status(); st.Streams != maxStreams {
		t.Errorf("%d streams", st.Streams)
	}
	w.apply(p, stored(h, "cpu"))
	w.wantReasons(nil)
}

// TestNamespaceBound: identities that only events state are bounded, and bounded
// ones can be registered.
func TestNamespaceBound(t *testing.T) {
	if testing.Short() {
		t.Skip("65,536 namespaces")
	}
	w := newWorld(t)
	p := w.add(base("i", 0))
	h := rolling(prompt(1, 1))
	for k := 0; k < maxNamespaces; k += 1024 {
		var events []event
		for i := range 1024 {
			events = append(events, stored(h, "gpu", "additional_salt", fmt.Sprint(k+i)))
		}
		w.apply(p, events...)
	}
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooMany: 1})
	reg := base("i", 1)
	if _, _, err := w.Registry.add(reg); err != nil { // for an identity that is there
		t.Error(err)
	}
	reg.LoRA = "new"
	if _, _, err := w.Registry.add(reg); !errors.Is(err, errFull) {
		t.Errorf("Add = %v, want errFull", err)
	}
	w.apply(p, cleared("gpu", "additional_salt", "77"))
	w.sweep()
	w.add(reg)
}

// TestNameBytes: the texts of identities that only events state are bounded in all, and
// there is room again for those that are gone.
func TestNameBytes(t *testing.T) {
	length.Sequential(t)
	w := newWorld(t)
	p := w.add(base("i", 0))
	h := rolling(prompt(1, 1))
	salt := func(k int) string { return fmt.Sprintf("%0*d", kvevents.MaxKey, k) }
	n := (maxNameBytes - p.registry.nameBytes) / (kvevents.MaxKey + len(p.Tenant) + len(p.Model))
	for k := range n + 3 {
		w.apply(p, stored(h, "gpu", "additional_salt", salt(k)))
	}
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooMany: 3})
	w.apply(p, cleared("gpu", "additional_salt", salt(77)))
	w.sweep()
	w.apply(p, stored(h, "gpu", "additional_salt", salt(n)))
	w.wantReasons(nil)
	w.apply(p, stored(h, "gpu", "additional_salt", salt(n+1)))
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooMany: 1})
}

// TestSpaceBound: so many publishers and spaces fit, and no more; together they
// stay small.
func TestSpaceBound(t *testing.T) {
	if testing.Short() {
		t.Skip("16,384 spaces")
	}
	w := newWorld(t)
	h := rolling(prompt(1, 4))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var last *Publisher
	for k := range maxSpaces {
		reg := base("i", 0)
		reg.Model = fmt.Sprint("model", k)
		last = w.add(reg)
		if k < 10000 {
			w.apply(last, stored(h, "gpu"))
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if mib := int64(after.HeapAlloc-before.HeapAlloc) >> 20; mib > 400 {
		t.Errorf("%d MiB of heap for 10,000 spaces with blocks", mib)
	} else {
		t.Logf("%d MiB of heap, indexes %d MiB", mib, w.Stats().Index.Bytes>>20)
	}
	w.apply(last, stored(h, "gpu", "tenant_id", "other"))
	w.wantReasons(map[kvevents.Reason]uint64{kvevents.TooMany: 1})
	if _, _, err := w.Registry.add(base("i", 0)); !errors.Is(err, errFull) {
		t.Errorf("Add = %v, want errFull", err)
	}
	for _, p := range w.withdrawAll(Filter{Instance: "i", Tenant: "default"}) {
		w.drop(p)
	}
	st := w.Stats()
	st.Unverified = 0
	if st != (Stats{}) {
		t.Errorf("Stats = %+v, want nothing left", st)
	}
}
