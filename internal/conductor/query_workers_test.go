package conductor_test

import (
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestConductorSelectionWorkers (decision C7): workers of selection appear under
// their decimal id, with all their ranks and tiers, in exactly the identity that
// they can answer for; an instance of that name that a publisher has goes before.
func TestConductorSelectionWorkers(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(7, 2))
	w.Put(servicetest.Record(12, 1))
	w.Slots(9, 0, 1) // carries load only
	if n := w.Conductor().SelectionWorkers(nil, nil); n != 2 {
		t.Errorf("%d workers can be shown, want 2", n)
	}
	p := servicetest.Prompt(1, 16)
	e := w.Engine(7, 0)
	e.Publish(0, e.Stored(p[:8], servicetest.BlockSize, nil))
	e = w.Engine(7, 1)
	e.Publish(1, e.Stored(p, servicetest.BlockSize, nil), e.Stored(p[:12], servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}), e.Removed(p[:12], servicetest.BlockSize, 2, "GPU"))
	salted, adapted := w.Engine(12, 0), w.Engine(12, 0)
	salted.Publish(0, salted.Stored(p, servicetest.BlockSize, servicetest.Dict{"cache_salt": "s"}))
	adapted.Seq = 1
	adapted.Publish(0, adapted.Stored(p, servicetest.BlockSize, servicetest.Dict{"lora_name": "l"}))

	const seven = "7: 16 GPU 12 CPU 12 DISK 0 DP 0:8 1:16"
	wantHits(w, servicetest.Identity, p, "", none("12")+", "+seven)
	wantHits(w, servicetest.Identity, servicetest.Prompt(2, 16), "", none("12")+", 7: 0 GPU 0 CPU 0 DISK 0 DP 0:0 1:0")
	wantHits(w, servicetest.Identity, p[:3], "12", none("12"))
	for name, want := range map[string]string{"7": seven, "12": none("12"), "07": "", "+7": "", "8": "", "9": "", "x": "", "18446744073709551616": ""} {
		wantHits(w, servicetest.Identity, p, name, want)
	}
	for name, change := range map[string]func(*conductor.Identity){
		"model":      func(id *conductor.Identity) { id.Model = "other" },
		"tenant":     func(id *conductor.Identity) { id.Tenant = "other" },
		"LoRA":       func(id *conductor.Identity) { id.LoRA = "l" },
		"salt":       func(id *conductor.Identity) { id.Salt = "s" },
		"block size": func(id *conductor.Identity) { id.BlockSize = 2 * servicetest.BlockSize },
	} {
		id := servicetest.Identity
		change(&id)
		if got := hits(w, id, p, ""); got != "" {
			t.Errorf("another %s: %s", name, got)
		}
	}

	r := servicetest.Registration("7", 0)
	w.Register(r)
	pub := w.Publisher(r)
	pub.Publish(0, pub.Stored(p[:4], servicetest.BlockSize, nil))
	w.Register(servicetest.Registration("a", 0))
	wantHits(w, servicetest.Identity, p, "", none("12")+", "+gpu("7", 4)+", "+none("a"))
	wantHits(w, servicetest.Identity, p, "7", gpu("7", 4))
	w.Unregister(servicetest.Instance("7"), "7|t|0")
	wantHits(w, servicetest.Identity, p, "7", seven)

	w.Remove(7)
	w.Remove(12)
	wantHits(w, servicetest.Identity, p, "", none("a"))
}

// TestConductorInstancesAreNotSelected (decision C7): a publisher's instance is
// no candidate, and its blocks are in no selection index.
func TestConductorInstancesAreNotSelected(t *testing.T) {
	w := servicetest.Start(t)
	r := servicetest.Registration("1", 0)
	w.Register(r)
	e := w.Publisher(r)
	p := servicetest.Prompt(1, 16)
	e.Publish(0, e.Stored(p, servicetest.BlockSize, nil))
	wantHits(w, servicetest.Identity, p, "", gpu("1", 16))
	_, err := w.Select(t.Context(), servicetest.Ask(p), false)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers are available")
	w.Put(servicetest.Record(1, 1))
	w.Settle()
	scores, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: servicetest.Ask(p).Prompt})
	if err != nil || len(scores.Rows) != 1 || scores.Rows[0].Device != 0 {
		t.Errorf("the worker's overlap is %+v, %v; want none", scores.Rows, err)
	}
	if n := len(w.Workers(nil, nil)); n != 1 {
		t.Errorf("%d workers, want 1", n)
	}
}

// TestConductorEaglePool: blocks that look one token ahead are found for a prompt
// that has that token, and never by their own hashes.
func TestConductorEaglePool(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.IsEagle = new(true) }))
	p := servicetest.Prompt(1, 9)
	pairs := make([][2]uint32, 8)
	for i := range pairs {
		pairs[i] = [2]uint32{p[i], p[i+1]}
	}
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(p[:8], servicetest.BlockSize, servicetest.Dict{"token_ids": pairs}))
	w.Settle()
	for n, want := range map[int]string{9: gpu("1", 8), 8: gpu("1", 4), 4: none("1")} {
		var a conductor.Answer
		if err := w.Conductor().Query(&conductor.Query{Identity: servicetest.Identity, Tokens: p[:n]}, &a); err != nil {
			t.Fatal(err)
		}
		if got := answerText(&a); got != want {
			t.Errorf("%d tokens: %s, want %s", n, got, want)
		}
	}
}
