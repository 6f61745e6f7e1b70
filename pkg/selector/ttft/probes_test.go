package ttft

import "testing"

// TestProbes: of requests that would be refused one of 32 is let through, twice as many after each that is in time, until all
// are, and half as many after each that is not.
func TestProbes(t *testing.T) {
	var p Probes
	refused := func() (n int) { // before the next probe
		for ; !p.Due(); n++ {
		}
		return n
	}
	sum := 0
	for _, want := range []int{31, 15, 7, 3, 1, 0, 0} {
		n := refused()
		if sum += n; n != want {
			t.Errorf("%d requests are refused before a probe, not %d", n, want)
		}
		p.Done(true)
	}
	if sum != MostRefused {
		t.Errorf("%d requests are refused while each probe is in time, not %d", sum, MostRefused)
	}
	for _, want := range []int{1, 3, 7, 15, 31, 31} {
		p.Done(false)
		if n := refused(); n != want {
			t.Errorf("after a late probe %d requests are refused before the next one, not %d", n, want)
		}
	}
}
