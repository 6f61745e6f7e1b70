package reservations

import (
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// TestPin proves that a pin keeps a prompt whatever becomes of the reservation whose blocks it
// shares, of its rank and of its scope; that it is no load; that it takes no memory for what it
// shares, which stays on the account; and that nothing is left after it.
func TestPin(t *testing.T) {
	sc := catalog.Scope{Model: "m"}
	sequence := chain(3250, func(i int) uint64 { return uint64(i + 1) })
	local := chain(3250, func(i int) uint64 { return uint64(i+1) << 32 })
	for _, c := range []struct {
		name             string
		keepLocal        bool
		active, of       int // of the sequence hashes: how many are booked, and pinned
		local            []uint64
		copied, onLedger int // words of the pin, bytes of the account after the free
	}{
		{"shared", true, 3125, 3250, local, 2 * 125, 3125 * (blockBytes + localBytes)},
		{"shared without local hashes", false, 3125, 3250, nil, 125, 3125 * blockBytes},
		{"local hashes have no room", false, 3125, 3250, local, 3250 + 125, 3125 * blockBytes},
		{"a part of a longer one", true, 3250, 1000, local, 0, 1000 * (blockBytes + localBytes)},
		{"too short", true, minPinned - 1, 40, local, 80, 0},
		{"nothing active", true, 0, 3250, local, 6500, 0},
	} {
		account := memory.NewAccount("ledger", 1<<40)
		l, _ := limited(Limits{Memory: account})
		if c.keepLocal {
			l.KeepLocalHashes()
		}
		l.PutRank(sc, 0, catalog.Rank{Worker: 1})
		if c.active > 0 {
			if _, err := l.Book(sc, Request{ID: "a", Hashes: sequence[:c.active]}, func(*View) (Placement, error) {
				return Placement{Rank: catalog.Rank{Worker: 1}}, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		loads := l.Loads(sc)
		wantLocal := c.local[:min(c.of, len(c.local))]
		pin := l.Pin(sc, slices.Clone(wantLocal), slices.Clone(sequence[:c.of]))
		if got := l.Loads(sc); !slices.Equal(got, loads) {
			t.Errorf("%s: loads %v, then %v", c.name, loads, got)
		}
		if pin.Blocks() != c.of || pin.Bytes() > 128+8*c.copied {
			t.Errorf("%s: %d blocks, %d bytes", c.name, pin.Blocks(), pin.Bytes())
		}
		check := func(when string) {
			t.Helper()
			if gotLocal, got := pin.AppendTo(nil, []uint64{7}); !slices.Equal(gotLocal, wantLocal) || !slices.Equal(got[1:], sequence[:c.of]) {
				t.Errorf("%s: other hashes %s", c.name, when)
			}
		}
		check("at once")
		_ = l.Free("a")
		check("after the reservation")
		if used := account.Used(); used != int64(c.onLedger) {
			t.Errorf("%s: %d bytes on the account, not %d", c.name, used, c.onLedger)
		}
		l.Look(sc, sequence, func(v *View) {
			if v.Shared(0) != 0 {
				t.Errorf("%s: %d blocks are active", c.name, v.Shared(0))
			}
		})
		l.RemoveRank(sc, 0)
		l.PutRank(sc, 5, catalog.Rank{Worker: 2})
		check("after the rank")
		pin.Unpin()
		if used := account.Used(); used != 0 {
			t.Errorf("%s: %d bytes are left on the account", c.name, used)
		}
	}
}
