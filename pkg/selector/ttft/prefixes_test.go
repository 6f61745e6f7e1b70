package ttft

import "testing"

// TestPrefixProbes: a late probe is worth it once as many requests that continue its prompt were in time as others may have come to
// its rank, one after the other, whether some of them are late meanwhile or not. One that nobody continues is not worth it, which is
// known once so many have come after it that it is forgotten. One that is in time after all is worth it at once.
func TestPrefixProbes(t *testing.T) {
	refused := func(p *PrefixProbes) (n int) { // before the next probe
		for ; !p.Due(); n++ {
		}
		return n
	}
	var p PrefixProbes
	conversation := []uint64{1, 2, 3}
	p.Ended(NewProbedPrefix(conversation, 1.5), false)
	if _, found := p.Continued([]uint64{1, 2}); found {
		t.Error("a shorter prompt continues it")
	}
	if _, found := p.Continued([]uint64{1, 2, 4, 5}); found {
		t.Error("another prompt continues it")
	}
	for turn, inTime := range []bool{true, false, true} {
		if n := refused(&p); n != 31 {
			t.Errorf("before turn %d %d requests are refused before a probe, not 31", turn, n)
		}
		conversation = append(conversation, uint64(10+turn))
		x, found := p.Continued(conversation)
		if !found {
			t.Fatalf("turn %d does not continue the probe", turn)
		}
		if _, again := p.Continued(conversation); again {
			t.Errorf("turn %d counts twice", turn)
		}
		p.Ended(x, inTime)
	}
	if n := refused(&p); n != 15 {
		t.Errorf("after two turns in time %d requests are refused, not 15", n)
	}
	if _, found := p.Continued(append(conversation, 99)); found {
		t.Error("it is not forgotten")
	}
	p.Ended(NewProbedPrefix(conversation, 100), true)
	if n := refused(&p); n != 7 {
		t.Errorf("after a probe in time %d requests are refused, not 7", n)
	}
	p.Ended(NewProbedPrefix(nil, 1), false) // shorter than a block
	if n := refused(&p); n != 15 {
		t.Errorf("after one that nobody can continue %d requests are refused, not 15", n)
	}
	for i := range maxLatePrefixes + 1 {
		p.Ended(NewProbedPrefix([]uint64{uint64(1000 + i)}, 1), false)
	}
	if n := refused(&p); n != 31 {
		t.Errorf("after the oldest was forgotten %d requests are refused, not 31", n)
	}
	if _, found := p.Continued([]uint64{1000}); found || p.kept != maxLatePrefixes {
		t.Errorf("%d are kept, the oldest among them: %t", p.kept, found)
	}
	if _, found := p.Continued([]uint64{1001, 1}); !found {
		t.Error("the second one is forgotten, too")
	}
}
