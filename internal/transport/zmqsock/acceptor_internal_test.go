package zmqsock

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/transport/clientnet"
)

// TestWhoMakesRoom: connections fill a bound socket in each stage. Whoever comes later
// gets as far as they did, and who stays in a stage for nothing goes first.
func TestWhoMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 3
		a := &acceptor{limit: limit, less: longestUnused, conns: make(map[*accepted]struct{})}
		open := func(to stage) *accepted {
			near, far := net.Pipe()
			t.Cleanup(func() { _, _ = near.Close(), far.Close() })
			c := &accepted{acceptor: a, conn: near, since: time.Now()}
			if a.add(c); to > handshaking {
				c.establish()
			}
			if to > unused {
				c.used()
			}
			time.Sleep(time.Millisecond)
			return c
		}
		var before [useful + 1][]*accepted
		for to := range before {
			for range limit {
				before[to] = append(before[to], open(stage(to)))
			}
		}
		honest := open(useful)
		if honest.displaced {
			t.Error("an honest connection has no room beside those that have sent something")
		}
		before[useful][1].used() // the longest unused one has gone; this would be next
		for range 10 * limit {
			open(handshaking)
			open(unused)
		}
		if honest.displaced {
			t.Error("connections that say nothing take the room of an honest one")
		}
		open(useful)
		for i, gone := range []bool{true, false, true} {
			if before[useful][i].displaced != gone {
				t.Errorf("useful connection %d has made room: %t", i, !gone)
			}
		}
		for to := range useful {
			for i, c := range before[to] {
				if !c.displaced {
					t.Errorf("connection %d stays in stage %d", i, to)
				}
			}
		}
	})
}

// TestOtherAddressHasRoom: one address fills a bound socket with connections that are of use.
// A connection from another one finds room, and keeps it, whoever comes or goes first.
func TestOtherAddressHasRoom(t *testing.T) {
	for name, less := range map[string]func(c, d *accepted) bool{"subscription": longestUnused, "publisher": newestSubscriber} {
		t.Run(name, func(t *testing.T) {
			a := &acceptor{limit: 4, less: less, conns: make(map[*accepted]struct{})}
			open := func(from string) *accepted {
				near, far := net.Pipe()
				t.Cleanup(func() { _, _ = near.Close(), far.Close() })
				c := &accepted{acceptor: a, conn: near, from: clientnet.Of(netip.MustParseAddr(from)), since: time.Now()}
				a.add(c)
				c.establish()
				c.used()
				return c
			}
			for range 10 {
				open("2001:db8::1")
			}
			honest := open("2001:db8:0:1::1")
			for range 10 {
				open("2001:db8::2").used()
			}
			if honest.displaced {
				t.Error("it has no room beside those of one host")
			}
		})
	}
}
