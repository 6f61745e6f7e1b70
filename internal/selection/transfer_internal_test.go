package selection

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestLinksMakeRoom: links between workers that are gone, such as those of earlier revisions, do not keep others from being learned.
func TestLinksMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fetches
		of := func(i int) link { return link{from: linked{revision: strconv.Itoa(i)}} }
		learn := func(i int) {
			for range minTransfers {
				f.note(of(i), 1000, time.Second)
			}
		}
		for i := range maxLinks {
			learn(i)
		}
		time.Sleep(forgetLink / 2)
		learn(0) // it is in use
		learn(maxLinks)
		if _, state := f.price(of(maxLinks), 1000); state != linkTried || len(f.byLink) != maxLinks {
			t.Errorf("one more is in state %v of %d links, all of which are in use", state, len(f.byLink))
		}
		time.Sleep(forgetLink/2 + time.Second)
		if _, state := f.price(of(maxLinks), 1000); state != linkUnknown {
			t.Errorf("one more is in state %v", state)
		}
		learn(maxLinks)
		for _, i := range []int{0, maxLinks} {
			if took, state := f.price(of(i), 1000); state != linkKnown && state != linkOld || took < 0.99 || took > 1.01 {
				t.Errorf("link %d: %v s, state %v", i, took, state)
			}
		}
		if n := len(f.byLink); n != 2 {
			t.Errorf("%d links are known", n)
		}
	})
}
