package selection

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestLinksMakeRoom: links between workers that are gone, such as those of earlier revisions, do not keep others from being learned.
func TestLinksMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fetches
		of := func(i int) link { return link{from: linked{Revision: strconv.Itoa(i)}} }
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

// TestKeptLinks: what was learned is restored as it was, of links of both kinds. What no transfers make is refused, and changes nothing.
func TestKeptLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var was, is API
		sc, l := catalog.Scope{Model: "m"}, link{catalog.Scope{Model: "m"}, linked{"r", "zone", "a", true}, linked{"r", "zone", "b", false}}
		for i := range 100 { // more than are remembered
			was.fetches.note(l, uint64(100+i), time.Duration(20+i)*time.Millisecond)
			was.transfers.note(l, 1000, time.Second)
		}
		kept := 0
		for of, state := range was.Links().Kept() {
			kept++
			if err := is.Links().Restore(of, state); err != nil || of != sc {
				t.Errorf("%v: %v", of, err)
			}
			for name, change := range map[string][2]string{
				"another version": {`"version":1`, `"version":2`},
				"no samples":      {`"samples":64`, `"samples":0`},
				"too many":        {`"samples":64`, `"samples":65`},
				"negative":        {`"tokens":`, `"tokens":-`},
				"another form":    {`{`, `[`},
				"longer":          {`"tokens_tokens":`, `"tokens_tokens":0.000000`},
				"too heavy":       {`"weight":`, `"weight":9`},
			} {
				var empty API
				bad := strings.Replace(string(state), change[0], change[1], 1)
				if err := empty.Links().Restore(of, json.RawMessage(bad)); err == nil || len(empty.fetches.byLink)+len(empty.transfers.byLink) > 0 {
					t.Errorf("%s: %v, %s", name, err, bad)
				}
			}
		}
		if kept != 2 || is.transfers.cost(l, 500) != was.transfers.cost(l, 500) {
			t.Errorf("%d links, one takes %v s, before %v s", kept, is.transfers.cost(l, 500), was.transfers.cost(l, 500))
		}
		a, b := was.fetches.known()[l], is.fetches.known()[l]
		same := a.last.Equal(b.last)
		a.last = b.last
		if a != b || !same {
			t.Errorf("%+v, restored %+v", a, b)
		}
	})
}
