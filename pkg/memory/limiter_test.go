package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

const (
	patience = 50 * time.Millisecond
	wait     = 2 * time.Second
	tick     = 10 * time.Millisecond // between looks for stalled clients
)

// client is a client that hears when it is cut off.
type client struct{ cut chan struct{} }

func newClient() *client { return &client{make(chan struct{})} }

func (c *client) CutOff() { close(c.cut) }

func (c *client) isCut() bool {
	select {
	case <-c.cut:
		return true
	default:
		return false
	}
}

// lend takes bytes for a client that is waited for.
func lend(t *testing.T, l *memory.Limiter, bytes int64, patience time.Duration) (*memory.Token, *client) {
	t.Helper()
	token, c := new(memory.Token), newClient()
	if err := l.Take(t.Context(), token, bytes, wait); err != nil {
		t.Fatal(err)
	}
	token.Lend(c, patience)
	return token, c
}

// TestLongestStalledGivesWay: a request that waits for memory gets that of the client that has stalled for longest, and
// of no other. A client that makes progress keeps its own, and so does one with more patience.
func TestLongestStalledGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewAccount("a", 100).Limiter()
		patient, hasTime := lend(t, l, 20, time.Hour)
		moves, moving := lend(t, l, 30, patience)
		stalls, stalled := lend(t, l, 30, patience)
		time.Sleep(patience)
		moves.Progressed()
		young, fresh := lend(t, l, 20, patience)
		var late memory.Token
		got := make(chan error)
		go func() { got <- l.Take(t.Context(), &late, 30, wait) }()
		synctest.Wait()
		if !stalled.isCut() || moving.isCut() || fresh.isCut() || hasTime.isCut() {
			t.Fatal("the wrong one is cut off")
		}
		if !stalls.Reclaim() || moves.Reclaim() {
			t.Error("Reclaim says otherwise")
		}
		stalls.Release()
		if err := <-got; err != nil || late.Bytes() != 30 || l.Account().Used() != 100 {
			t.Errorf("%v, %d bytes of %d", err, late.Bytes(), l.Account().Used())
		}
		for _, token := range []*memory.Token{patient, moves, young, &late} {
			token.Release()
		}
		if n := l.Account().Used(); n != 0 || l.Account().Refused() != 1 {
			t.Errorf("%d bytes are left, %d refusals", n, l.Account().Refused())
		}
	})
}

// TestWaits: a request that finds no memory and no stalled client waits, and is refused after a time, or at once if it
// does not wait for others. Its own end ends the wait.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewAccount("a", 100).Limiter()
		var all, token memory.Token
		if err := l.Take(t.Context(), &all, 100, wait); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, test := range []struct {
			ctx  context.Context
			wait time.Duration
			err  error
			took time.Duration
		}{{t.Context(), wait, memory.ErrFull, wait}, {t.Context(), 0, memory.ErrFull, 0}, {ended, wait, context.Canceled, 0}} {
			begin := time.Now()
			if err := l.Take(test.ctx, &token, 1, test.wait); !errors.Is(err, test.err) || time.Since(begin) != test.took {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(begin), test.err, test.took)
			}
		}
		_ = time.AfterFunc(time.Second, all.Release)
		if err := l.Take(t.Context(), &token, 100, wait); err != nil {
			t.Error(err)
		}
		token.Release()
		if n := l.Account().Used(); n != 0 || l.Account().Refused() != 2 {
			t.Errorf("%d bytes are left, %d refusals", n, l.Account().Refused())
		}
		time.Sleep(tick)
	})
}

// TestTakesPlaceOfStalled: a request that does not wait for others gets the memory of a client that has stalled, or soon
// will have, once that is there, and waits no longer for it than a quarter of a second.
func TestTakesPlaceOfStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewAccount("a", 1).Limiter()
		first, c := lend(t, l, 1, time.Second)
		var token memory.Token
		if err := l.Take(t.Context(), &token, 1, 0); !errors.Is(err, memory.ErrFull) || c.isCut() {
			t.Errorf("at once: %v, cut off: %t", err, c.isCut())
		}
		time.Sleep(time.Second)
		begin := time.Now()
		if err := l.Take(t.Context(), &token, 1, 0); !errors.Is(err, memory.ErrFull) || !c.isCut() || time.Since(begin) != time.Second/4 {
			t.Errorf("%v after %v, cut off: %t", err, time.Since(begin), c.isCut())
		}
		first.Release()
		for _, stalled := range []time.Duration{patience, 0} {
			second, c := lend(t, l, 1, patience)
			go func() {
				<-c.cut
				second.Release()
			}()
			time.Sleep(stalled)
			if err := l.Take(t.Context(), &token, 1, 0); err != nil {
				t.Errorf("after %v: %v", stalled, err)
			}
			token.Release()
		}
		time.Sleep(tick)
	})
}

// TestNewestBesideThousands: a request that comes after thousands that get memory and stall waits about as long as one
// of them may keep it, and the thousands are served too once no others come.
func TestNewestBesideThousands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewAccount("a", 100).Limiter()
		var served, refused int
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 5000 {
			c := newClient()
			all.Go(func() {
				var token memory.Token
				defer token.Release()
				err := l.Take(t.Context(), &token, 1, wait)
				mu.Lock()
				if err != nil {
					refused++
				} else {
					served++
				}
				mu.Unlock()
				if err == nil {
					token.Lend(c, patience)
					<-c.cut
				}
			})
			synctest.Wait() // each comes after the one before
		}
		for range 10 {
			came := time.Now()
			var token memory.Token
			if err := l.Take(t.Context(), &token, 1, wait); err != nil || time.Since(came) > patience+tick {
				t.Errorf("%v after %v", err, time.Since(came))
			}
			token.Release()
		}
		time.Sleep(wait)
		var whole memory.Token
		if err := l.Take(t.Context(), &whole, 100, wait); err != nil {
			t.Error(err)
		}
		whole.Release()
		all.Wait()
		if served+refused != 5000 || served < 3000 { // 100 in each 50 ms or 60 ms of two seconds
			t.Errorf("%d served, %d refused", served, refused)
		}
		time.Sleep(tick)
	})
}

// TestLongestBesideMany: a request that waits for others is served although clients that stall, and come again as
// soon as they are refused or cut off, always come after it, and keep what they get for nearly as long as it waits.
func TestLongestBesideMany(t *testing.T) {
	const stalls = 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewAccount("a", 10).Limiter()
		stop := make(chan struct{})
		var all sync.WaitGroup
		for i := range uint64(70) {
			random := rand.New(rand.NewPCG(i, 1))
			all.Go(func() {
				for again := true; again; {
					var token memory.Token
					if l.Take(t.Context(), &token, 1, 0) == nil {
						c := newClient()
						token.Lend(c, stalls)
						select {
						case <-c.cut:
						case <-stop:
						}
						token.Release()
					}
					select {
					case <-time.After(time.Duration(random.IntN(40_000)) * time.Microsecond):
					case <-stop:
						again = false
					}
				}
			})
		}
		time.Sleep(time.Second)
		for i := range 10 {
			var token memory.Token
			if err := l.Take(t.Context(), &token, 1, stalls+time.Second); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			token.Release()
			time.Sleep(tick)
		}
		close(stop)
		all.Wait()
		time.Sleep(time.Second)
	})
}

// TestOldestBesideNewest: a newest request that does not fit does not keep the oldest waiting.
func TestOldestBesideNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewAccount("a", 100).Limiter()
		var tokens [10]memory.Token
		for i := range tokens {
			if !l.Try(&tokens[i], 10) {
				t.Fatal("no room")
			}
		}
		var came []string
		var mu sync.Mutex
		var all sync.WaitGroup
		for name, n := range map[string]int64{"small": 10, "large": 50} {
			all.Go(func() {
				if name == "large" {
					time.Sleep(time.Millisecond)
				}
				var token memory.Token
				if l.Take(t.Context(), &token, n, wait) == nil {
					mu.Lock()
					came = append(came, name)
					mu.Unlock()
				}
				token.Release()
			})
		}
		time.Sleep(time.Second)
		for i := range tokens {
			tokens[i].Release()
			synctest.Wait()
		}
		all.Wait()
		if want := []string{"small", "large"}; !slices.Equal(came, want) {
			t.Errorf("%q have come, want %q", came, want)
		}
		time.Sleep(tick)
	})
}

// TestResize: a token gets more of its limiter, or all of another one, in place of what it has; without room it keeps
// that, and a client that has been cut off gets nothing. A limiter that is nil has room for all.
func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small, large := memory.NewAccount("small", 100).Limiter(), memory.NewAccount("large", 100).Limiter()
		var token, other memory.Token
		resize := func(l *memory.Limiter, n int64, want error) {
			t.Helper()
			if err := l.Resize(t.Context(), &token, n, 0); !errors.Is(err, want) {
				t.Errorf("%d bytes: %v, want %v", n, err, want)
			}
		}
		has := func(inSmall, inLarge int64) {
			t.Helper()
			if s, l := small.Account().Used(), large.Account().Used(); s != inSmall || l != inLarge || token.Bytes() != max(s, l) {
				t.Errorf("%d and %d bytes are used, the token has %d", s, l, token.Bytes())
			}
		}
		resize(small, 60, nil)
		resize(small, 100, nil)
		has(100, 0)
		resize(small, 101, memory.ErrFull)
		resize(large, 101, memory.ErrFull)
		has(100, 0)
		resize(large, 80, nil)
		has(0, 80)
		c := newClient()
		token.Lend(c, patience)
		time.Sleep(patience)
		if err := large.Take(t.Context(), &other, 21, 0); !errors.Is(err, memory.ErrFull) || !c.isCut() {
			t.Errorf("%v, cut off: %t", err, c.isCut())
		}
		resize(large, 81, memory.ErrFull)
		resize(small, 81, memory.ErrFull)
		has(0, 80)
		token.Release()
		has(0, 0)
		resize(nil, 1000, nil)
		token.Lend(c, 0)
		token.Release()
		has(0, 0)
		time.Sleep(tick)
	})
}

// grow takes 64 bytes for a client, and 160 more once start is closed.
func grow(t *testing.T, l *memory.Limiter, token *memory.Token, c *client, start chan struct{}) error {
	if err := l.Take(t.Context(), token, 64, wait); err != nil {
		return err
	}
	token.Lend(c, 5*patience)
	<-start
	return l.Take(t.Context(), token, 160, wait)
}

// TestGrowTogether: of requests that together have all memory and need more, few are cut off, and the others are served
// one after the other, although as many others come.
func TestGrowTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := memory.NewAccount("a", 80*64).Limiter(), make(chan struct{})
		var mu sync.Mutex
		var all sync.WaitGroup
		served := 0
		for range 160 {
			all.Go(func() {
				var token memory.Token
				defer token.Release()
				if grow(t, l, &token, newClient(), start) == nil {
					mu.Lock()
					served++
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		close(start)
		all.Wait()
		if served < 150 || l.Account().Used() != 0 || l.Account().Refused() != uint64(160-served) {
			t.Errorf("%d served, %d refused, %d bytes are left", served, l.Account().Refused(), l.Account().Used())
		}
		time.Sleep(tick)
	})
}

// TestNewestBesideThoseThatGrow: clients that have all memory, need more and then stall do not keep the newest from its
// own for longer than a second.
func TestNewestBesideThoseThatGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := memory.NewAccount("a", 80*64).Limiter(), make(chan struct{})
		close(start)
		var all sync.WaitGroup
		for range 160 {
			all.Go(func() {
				var token memory.Token
				defer token.Release()
				if c := newClient(); grow(t, l, &token, c, start) == nil {
					<-c.cut
				}
			})
		}
		synctest.Wait()
		var token memory.Token
		came := time.Now()
		if err := l.Take(t.Context(), &token, 64, wait); err != nil || time.Since(came) > time.Second {
			t.Errorf("%v after %v", err, time.Since(came))
		}
		token.Release()
		var whole memory.Token
		if err := l.Take(t.Context(), &whole, 80*64, time.Minute); err != nil {
			t.Error(err)
		}
		whole.Release()
		all.Wait()
		time.Sleep(tick)
	})
}

// TestTokensUnderLoad: whatever requests do at the same time, nothing is held at the end, and all of them end.
func TestTokensUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewAccount("a", 1000).Limiter()
		results := make(map[string]int)
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range uint64(1500) {
			all.Go(func() {
				random := rand.New(rand.NewPCG(i, 1))
				var token memory.Token
				defer token.Release()
				end := func(result string) {
					mu.Lock()
					defer mu.Unlock()
					results[result]++
				}
				time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
				c := newClient()
				for range 1 + random.IntN(5) {
					wait := wait * time.Duration(random.IntN(2))
					if err := l.Take(t.Context(), &token, 1+random.Int64N(100), wait); err != nil {
						end(fmt.Sprint("full, waits: ", wait > 0))
						return
					}
					token.Lend(c, patience*time.Duration(1+random.IntN(2)))
					select {
					case <-c.cut:
						end("cut off")
						return
					case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
						token.Progressed()
					}
				}
				end("served")
			})
		}
		all.Wait()
		if len(results) != 4 || l.Account().Used() != 0 {
			t.Errorf("%v, %d bytes are left", results, l.Account().Used())
		}
		var whole memory.Token
		if !l.Try(&whole, 1000) {
			t.Error("somebody waits")
		}
		whole.Release()
		time.Sleep(tick)
	})
}
