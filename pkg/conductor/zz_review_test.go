package conductor

import (
	"testing"
)

// parent stored by another backend / rank / publisher, tokens + parent
func TestZZParentElsewhere(t *testing.T) {
	tokens := prompt(1, 4)
	h := rolling(tokens)
	for _, first := range []bool{true, false} {
		w := newWorld(t)
		p := w.add(base("i", 0))
		a := stored(h[:2], "gpu", "backend_id", "a", "token_ids", tokens[:8])
		b := stored(h[2:], "cpu", "backend_id", "b", "base_block_idx", 2, "parent_hash", h[1], "token_ids", tokens[8:])
		if first {
			w.apply(p, a, b)
		} else {
			w.apply(p, b, a)
		}
		t.Log("with tokens", first, w.answer(p.Identity, tokens), w.work.Tally.Blocks)
		w = newWorld(t)
		p = w.add(base("i", 0))
		a = stored(h[:2], "gpu", "backend_id", "a")
		b = stored(h[2:], "cpu", "backend_id", "b", "base_block_idx", 2, "parent_hash", h[1])
		if first {
			w.apply(p, a, b)
		} else {
			w.apply(p, b, a)
		}
		t.Log("hashes", first, w.answer(p.Identity, tokens))
	}
}

// an engine publishes under LoRA; evicts all; sweep; token-less store
func TestZZSweepRecent(t *testing.T) {
	w := newWorld(t)
	p := w.add(base("i", 0))
	tokens := prompt(1, 2)
	id := p.Identity
	id.LoRA = "x"
	w.apply(p, engineStored([]uint64{1, 2}, nil, tokens, "GPU", "lora_name", "x"))
	t.Log(w.answer(id, tokens))
	w.apply(p, engineRemoved([]uint64{1, 2}, "GPU"))
	w.Sweep()
	w.apply(p, engineStored([]uint64{1, 2}, nil, []uint32{}, "CPU", "block_size", 0))
	t.Log("after offload:", w.answer(id, tokens), w.Stats())
	w.Sweep()
	t.Log(w.Stats())
	w.apply(p, engineStored([]uint64{1, 2}, nil, tokens, "GPU", "lora_name", "x"))
	t.Log("again:", w.answer(id, tokens), w.Stats())
	w.Drop(p)
	t.Log(w.Stats())
}

func TestZZMooncakeRestart(t *testing.T) {
	w := newWorld(t)
	reg := base("i", 0)
	reg.Type = Mooncake
	p := w.add(reg)
	n := uint64(0)
	send := func(m string, k uint64) {
		n++
		w.apply(p, stored([]uint64{k}, m, "event_id", n))
	}
	for k := range uint64(50) {
		send("cpu", k)
		send("disk", k)
	}
	n = 0
	for k := range uint64(40) {
		send("cpu", 100+k)
		send("disk", 100+k)
	}
	t.Logf("%+v %v", p.Status(), w.reasons())
}
