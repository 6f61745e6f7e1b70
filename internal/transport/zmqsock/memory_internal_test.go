package zmqsock

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// TestStalledMessagesMakeRoom: small messages that never end fill an account. Who needs
// room has the oldest of them go, and neither those of another account nor what has only
// just begun.
func TestStalledMessagesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, room = 16 << 10, 64
		account, other := memory.NewAccount("streams", size*room), memory.NewAccount("replay", size)
		var all partials
		open := func(account *memory.Account) *connMemory {
			near, far := net.Pipe()
			t.Cleanup(func() { _, _ = near.Close(), far.Close() })
			m := all.open(t.Context(), near, account)
			go func() { // as a socket does when its connection is closed
				_, _ = far.Read(make([]byte, 1))
				m.Release(m.held.Load())
				m.close()
			}()
			return m
		}
		foreign := open(other)
		if !foreign.Reserve(size, 0, size) {
			t.Fatal("no room in an empty account")
		}
		var stalled []*connMemory
		for range room {
			m := open(account)
			if !m.Reserve(size, 0, size) {
				t.Fatal("no room before the account is full")
			}
			stalled = append(stalled, m)
			time.Sleep(10 * time.Millisecond)
		}
		for i := range room {
			if !open(account).Reserve(size, 0, size) {
				t.Fatalf("message %d has found no room", i)
			}
		}
		gone := 0
		for i, m := range stalled {
			if m.shed.Load() {
				gone++
			} else if i < room/roomShare {
				t.Errorf("message %d of %d is still being read", i, room)
			}
		}
		if gone != room || foreign.shed.Load() {
			t.Errorf("%d of %d messages made room for as many; that of another account: %t", gone, room, foreign.shed.Load())
		}
	})
}

// TestYoungMessagesStay: where all messages have only just begun, nobody goes at once.
func TestYoungMessagesStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := memory.NewAccount("streams", 1000)
		var all partials
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		first, second := all.open(t.Context(), near, account), all.open(t.Context(), near, account)
		if !first.Reserve(600, 0, 600) {
			t.Fatal("no room in an empty account")
		}
		begin := time.Now()
		go func() {
			for !first.shed.Load() && time.Since(begin) < time.Second {
				time.Sleep(time.Millisecond)
			}
			first.Release(600)
		}()
		if !second.Reserve(600, 0, 600) {
			t.Error("no room after all")
		}
		if took := time.Since(begin); took < stalledFor {
			t.Errorf("a young message had to go after %v", took)
		}
	})
}
