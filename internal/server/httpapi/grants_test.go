package httpapi

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// noted are grants of 100 bytes that note who is cut off.
type noted struct {
	grants
	cut []http.ResponseWriter
}

func newNoted(unlisted int64) *noted {
	n := new(noted)
	n.grants = grants{account: memory.NewAccount("a", 100), patience: sendPatience, unlisted: unlisted}
	n.grants.cut = func(w http.ResponseWriter) { n.cut = append(n.cut, w) }
	return n
}

// granted takes bytes for a client that is waited for.
func (n *noted) granted(t *testing.T, bytes int64) *grant {
	t.Helper()
	g := new(grant)
	if err := n.take(t.Context(), g, bytes); err != nil {
		t.Fatal(err)
	}
	g.beginWait(httptest.NewRecorder())
	return g
}

// TestStillestGivesWay: who waits for memory gets that of the client that has kept
// still for longest, and of no other; a client that moves keeps its own.
func TestStillestGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNoted(0)
		moves, still := s.granted(t, 40), s.granted(t, 40)
		time.Sleep(sendPatience)
		moves.progressed()
		s.granted(t, 20)
		var late grant
		got := make(chan error)
		go func() { got <- s.take(t.Context(), &late, 40) }()
		synctest.Wait()
		if len(s.cut) != 1 || s.cut[0] != still.client {
			t.Fatalf("%d are cut off", len(s.cut))
		}
		if !still.done() || moves.done() {
			t.Error("the wrong one is cut off")
		}
		still.release()
		if err := <-got; err != nil || late.bytes != 40 || s.account.Used() != 100 {
			t.Errorf("%v, %d bytes of %d", err, late.bytes, s.account.Used())
		}
	})
}

// TestWaitsForMemory: who finds no memory and nobody who keeps still waits, and is
// refused after a time.
func TestWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNoted(100)
		all := s.granted(t, 100) // may keep it
		begin := time.Now()
		var g grant
		if err := s.take(t.Context(), &g, 1); problemOf(err, dialect13).status != http.StatusServiceUnavailable || time.Since(begin) != grantPatience {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		all.release()
		if err := s.take(t.Context(), &g, 100); err != nil || len(s.cut) != 0 {
			t.Errorf("%v, %d cut off", err, len(s.cut))
		}
		g.release()
		if s.account.Used() != 0 || s.waiting.Load() != 0 || s.queued != 0 {
			t.Errorf("%d bytes, %d waiting for %d", s.account.Used(), s.waiting.Load(), s.queued)
		}
	})
}

// TestNewestBesideThousands: who comes after thousands that get memory and keep still waits
// about as long as one of them may keep it, and the first of the thousands is not forgotten.
func TestNewestBesideThousands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &grants{account: memory.NewAccount("a", 100), patience: sendPatience}
		s.cut = func(w http.ResponseWriter) { close(w.(*stopped).cut) }
		var wg sync.WaitGroup
		begin := time.Now()
		var oldest time.Duration // of those who have to wait, the wait of the first
		for i := range 5000 {
			client := &stopped{cut: make(chan struct{})}
			wg.Go(func() {
				var g grant
				defer g.release()
				if s.take(t.Context(), &g, 1) != nil {
					return // after grantPatience
				}
				if i == 100 {
					oldest = time.Since(begin)
				}
				g.beginWait(client)
				<-client.cut
			})
			synctest.Wait() // each comes after the one before
		}
		const most = 2 * (sendPatience + grantTick)
		for range 10 {
			came := time.Now()
			var g grant
			if err := s.take(t.Context(), &g, 1); err != nil || time.Since(came) > most {
				t.Errorf("%v after %v", err, time.Since(came))
			}
			g.release()
		}
		// The rest is refused, or cut off once the others come who need its memory.
		time.Sleep(grantPatience)
		var all grant
		if err := s.take(t.Context(), &all, 100); err != nil {
			t.Error(err)
		}
		all.release()
		wg.Wait()
		if oldest == 0 || oldest > most {
			t.Errorf("the oldest waited %v", oldest)
		}
		time.Sleep(grantTick) // the last look
	})
}

// TestReusedGrantSends: a grant that had nothing when its client was to read is that of a client
// that sends, once it has memory.
func TestReusedGrantSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &grants{account: memory.NewAccount("a", 100)}
		client := &stopped{cut: make(chan struct{})}
		s.cut = func(w http.ResponseWriter) { close(w.(*stopped).cut) }
		var g, other grant
		g.beginWaitForReader(client)
		if err := s.take(t.Context(), &g, 100); err != nil {
			t.Fatal(err)
		}
		g.beginWait(client)
		go func() {
			<-client.cut
			g.release()
		}()
		if err := s.take(t.Context(), &other, 1); err != nil {
			t.Errorf("the client was not cut off: %v", err)
		}
		other.release()
		time.Sleep(grantTick) // the last look
	})
}

// TestTurnsOfOldestAndNewest: those who have a part take no turn, and a newest that does
// not fit does not keep the oldest waiting.
func TestTurnsOfOldestAndNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &grants{account: memory.NewAccount("a", 100), patience: sendPatience}
		var room, part grant
		if s.take(t.Context(), &room, 90) != nil || s.take(t.Context(), &part, 10) != nil {
			t.Fatal("no room")
		}
		free := func(n int64) {
			s.account.Release(n)
			room.bytes -= n
			s.look()
			synctest.Wait()
		}
		var came []string
		var wg sync.WaitGroup
		waits := func(name string, g *grant, n int64) {
			wg.Go(func() {
				if s.take(t.Context(), g, n) == nil {
					came = append(came, name)
				}
			})
			synctest.Wait()
		}
		newcomers := make([]grant, 7)
		for i := range 4 {
			waits(fmt.Sprint(i), &newcomers[i], 10)
		}
		for range 4 {
			waits("part", &part, 1)
			free(1)
			free(10)
		}
		if want := []string{"part", "0", "part", "3", "part", "1", "part", "2"}; !slices.Equal(came, want) {
			t.Errorf("%q have come, want %q", came, want)
		}
		came = nil
		waits("first", &newcomers[4], 10)
		free(10)
		waits("second", &newcomers[5], 10)
		waits("wants much", &newcomers[6], 50)
		free(10)
		if want := []string{"first", "second"}; !slices.Equal(came, want) {
			t.Errorf("%q have come, want %q", came, want)
		}
		wg.Wait() // the last one is refused
		part.release()
		room.release()
		for i := range newcomers {
			newcomers[i].release()
		}
		if used := s.account.Used(); used != 0 || len(came) != 2 {
			t.Errorf("%d bytes are held, %q have come", used, came)
		}
		time.Sleep(grantTick) // the last look
	})
}

// stopped is a client that hears when it is cut off.
type stopped struct {
	http.ResponseWriter
	cut chan struct{}
}

// TestHoldersUnderLoad: whatever requests do at the same time, nothing is held at the
// end, and all of them end.
func TestHoldersUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &grants{account: memory.NewAccount("a", 1000), patience: sendPatience, unlisted: 300}
		s.cut = func(w http.ResponseWriter) { close(w.(*stopped).cut) }
		var wg sync.WaitGroup
		var served, refused int
		var mu sync.Mutex
		for i := range uint64(300) {
			client := &stopped{cut: make(chan struct{})}
			wg.Go(func() {
				random := rand.New(rand.NewPCG(i, 1))
				var g grant
				defer g.release()
				time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
				for range 1 + random.IntN(5) {
					if err := s.take(t.Context(), &g, 1+random.Int64N(100)); err != nil {
						if errors.Is(err, errClientGone) {
							t.Error(err)
						}
						mu.Lock()
						refused++
						mu.Unlock()
						return
					}
					g.beginWait(client)
					select {
					case <-client.cut:
					case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
						g.progressed()
					}
				}
				mu.Lock()
				served++
				mu.Unlock()
			})
		}
		wg.Wait()
		synctest.Wait()
		if s.account.Used() != 0 || s.waiting.Load() != 0 || s.queued != 0 || s.leaving != 0 || s.stalled.Len() != 0 || served == 0 || refused == 0 {
			t.Errorf("%d bytes, %d waiting for %d, %d leaving, %d in the list; %d served, %d refused",
				s.account.Used(), s.waiting.Load(), s.queued, s.leaving, s.stalled.Len(), served, refused)
		}
		time.Sleep(grantTick) // the last look
	})
}
