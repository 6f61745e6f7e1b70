package conductor

import (
	"testing"

	"github.com/select-service/select-service/internal/selection/diagnose"
)

// TestClaimsAreSettled proves that hashes that nothing confirmed when they came
// are called what tokens that come later show them to be: announced, or asked
// with; and that they are not called anything else.
func TestClaimsAreSettled(t *testing.T) {
	p, other := prompt(1, 4), prompt(2, 4)
	own := from(901, 4)
	engine := func(w *world, events ...event) {
		reg := base("engine", 0)
		reg.Type = VLLM
		w.apply(w.add(reg), events...)
	}
	for name, c := range map[string]struct {
		hashes []uint64
		then   func(w *world, daemon *Publisher)
		want   diagnose.HashSource
	}{
		"standard, nothing more": {rolling(p), func(*world, *Publisher) {}, diagnose.HashesUnverified},
		"standard, then tokens": {rolling(p), func(w *world, _ *Publisher) {
			engine(w, engineStored(own, nil, p, "GPU"))
		}, diagnose.HashesStandard},
		"standard, then tokens of another prompt": {rolling(p), func(w *world, _ *Publisher) {
			engine(w, engineStored(own, nil, other, "GPU"))
		}, diagnose.HashesUnverified},
		"own, then tokens": {own, func(w *world, _ *Publisher) {
			engine(w, engineStored(own, nil, p, "GPU"))
		}, diagnose.HashesOwn},
		"own, then tokens of other names": {own, func(w *world, _ *Publisher) {
			engine(w, engineStored(from(1, 4), nil, p, "GPU"))
		}, diagnose.HashesUnverified},
		"standard, then gone": {rolling(p), func(w *world, daemon *Publisher) {
			w.apply(daemon, removed(rolling(p), "gpu"))
			engine(w, engineStored(own, nil, p, "GPU"))
		}, diagnose.HashesUnverified},
		"own, then gone": {own, func(w *world, daemon *Publisher) {
			w.apply(daemon, removed(own, "gpu"))
			engine(w, engineStored(own, nil, p, "GPU"))
		}, diagnose.HashesUnverified},
		"standard, then other hashes": {rolling(p), func(w *world, _ *Publisher) {
			w.apply(w.add(base("second", 0)), stored(rolling(p), "gpu"))
		}, diagnose.HashesUnverified},
		"standard, asked with tokens": {rolling(p), func(w *world, daemon *Publisher) {
			w.ask(daemon.Identity, p)
		}, diagnose.HashesStandard},
		"standard, asked by hash": {rolling(p), func(w *world, daemon *Publisher) {
			w.diagnose(&Query{Identity: daemon.Identity, Hashes: rolling(p), ByHash: true}, 0)
		}, diagnose.HashesUnverified},
		"own, asked with tokens": {own, func(w *world, daemon *Publisher) {
			w.ask(daemon.Identity, p)
		}, diagnose.HashesUnverified},
		"one of many": {rolling(p), func(w *world, daemon *Publisher) {
			for i := range maxUnconfirmed - 1 {
				w.apply(daemon, stored(from(uint64(5000+10*i), 4), "gpu"))
			}
			engine(w, engineStored(own, nil, p, "GPU"))
		}, diagnose.HashesStandard},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			daemon := w.add(base("daemon", 0))
			w.apply(daemon, stored(c.hashes, "gpu"))
			c.then(w, daemon)
			if got := daemon.Status().Hashes; got != c.want {
				t.Errorf("hashes are %s, want %s", got, c.want)
			}
		})
	}
}

// TestClaimsStaySettled proves that what tokens have shown once stays so when
// they are gone.
func TestClaimsStaySettled(t *testing.T) {
	w := newWorld(t)
	p := prompt(1, 2)
	daemon := w.add(base("daemon", 0))
	w.apply(daemon, stored(rolling(p), "gpu"))
	reg := base("engine", 0)
	reg.Type = SGLang
	engine := w.add(reg)
	w.apply(engine, engineStored(from(1, 2), nil, p, "GPU"))
	d := w.ask(reg.Identity, p)
	wantText(t, "ranks", d.rows(), "instance daemon rank 0 backend cache: 2, standard\ninstance engine rank 0: 2, tokens\n")
	w.apply(engine, event{"type": "AllBlocksCleared"})
	w.apply(daemon, removed(rolling(p), "gpu"))
	if got := daemon.Status().Hashes; got != diagnose.HashesStandard {
		t.Errorf("hashes are %s", got)
	}
}
