package kvevents

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestLagOf proves that lags are exact for both units of time, that a clock that
// is ahead gives 0, that no number makes a lag beyond MaxLag, and which numbers
// are no time.
func TestLagOf(t *testing.T) {
	const now = 1_753_000_000
	for name, tc := range map[string]struct {
		stated float64
		lag    time.Duration
		ok     bool
	}{
		"just now":             {now, 0, true},
		"seconds":              {now - 2.5, 2500 * time.Millisecond, true},
		"milliseconds":         {(now - 2.5) * 1000, 2500 * time.Millisecond, true},
		"the future":           {now + 2.5, 0, true},
		"the far future":       {9.9e10, 0, true},
		"in milliseconds":      {9.9e13, 0, true},
		"an hour":              {now - 3600, MaxLag, true},
		"more than an hour":    {now - 3601, MaxLag, true},
		"1973":                 {1e8, MaxLag, true},
		"1973 in milliseconds": {1e11, MaxLag, true},
		"none":                 {0, 0, false},
		"a counter":            {1.5, 0, false},
		"time since the boot":  {99_999_999, 0, false},
		"negative":             {-now, 0, false},
		"microseconds":         {now * 1e6, 0, false},
		"nanoseconds":          {now * 1e9, 0, false},
		"NaN":                  {math.NaN(), 0, false},
		"infinity":             {math.Inf(1), 0, false},
		"less than everything": {math.Inf(-1), 0, false},
		"the largest number":   {math.MaxFloat64, 0, false},
		"the smallest number":  {math.SmallestNonzeroFloat64, 0, false},
	} {
		if lag, ok := lagOf(now*1e9, tc.stated); lag != tc.lag || ok != tc.ok {
			t.Errorf("%s: %v, %v; want %v, %v", name, lag, ok, tc.lag, tc.ok)
		}
	}
}

// FuzzLag proves that whatever is stated and whenever it comes, a lag is neither
// negative nor longer than MaxLag.
func FuzzLag(f *testing.F) {
	f.Add(int64(1e18), 1e9)
	f.Add(int64(math.MinInt64), math.Inf(1))
	f.Add(int64(math.MaxInt64), 1e8)
	f.Fuzz(func(t *testing.T, received int64, stated float64) {
		if lag, ok := lagOf(received, stated); lag < 0 || lag > MaxLag || !ok && lag != 0 {
			t.Errorf("lagOf(%d, %v) = %v, %v", received, stated, lag, ok)
		}
	})
}

// TestLag proves which lags are reported: those of live messages that could be read,
// from the batch's time to when they came, however long they wait for a replay;
// not those of replayed or repeated messages.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub := startRig(t, "rep")
		defer r.stop()
		synctest.Wait()
		rep := r.src.open("rep")
		pub.live(1, r.batch(250*time.Millisecond, 0, storedEvent(1)))
		time.Sleep(time.Second)
		r.wantLags("held for a replay")
		rep.answers(r.batch(time.Minute, 0, storedEvent(7)), r.batch(1250*time.Millisecond, 0, storedEvent(1)))
		r.wantLags("replayed, the live one overtaken")

		pub.live(2, r.batch(250*time.Millisecond, 0, storedEvent(2)))
		pub.live(3, r.batch(-time.Second, 0, storedEvent(3)))
		pub.live(4, r.batch(48*time.Hour, 0))
		r.wantLags("live", 250*time.Millisecond, 0, MaxLag)
		pub.live(2, r.batch(500*time.Millisecond, 0, storedEvent(2)))
		r.wantLags("a duplicate")

		pub.live(5, packed(t, list{unix(time.Second), list{}, "no rank"}))
		pub.live(6, "\xc1")
		pub.live(7, packed(t, list{nil, list{}, 0}))
		pub.live(8, packed(t, list{math.NaN(), list{}, 0}))
		pub.live(9, packed(t, list{math.Inf(1), list{}, 0}))
		pub.live(10, packed(t, list{1.5, list{}, 0}))
		r.wantLags("unreadable, or without a time")
		pub.live(11, packed(t, dict{"events": list{}, "ts": unix(2 * time.Second)}))
		pub.live(12, packed(t, list{time.Now().UnixMilli() - 4000, list{}, 0}))
		r.wantLags("other layouts", 2*time.Second, 4*time.Second)

		// Two are held, the gap before them is replayed.
		time.Sleep(ignoreLowFor)
		pub.live(15, r.batch(time.Second, 0, storedEvent(4)))
		pub.live(16, r.batch(2*time.Second, 0, storedEvent(5)))
		synctest.Wait()
		time.Sleep(3 * time.Second)
		r.src.open("rep").answers(r.batch(time.Minute, 0), r.batch(time.Minute, 0))
		r.wantLags("after a gap", time.Second, 2*time.Second)
	})
}

// TestNoLag proves that Config.Lag may be nil.
func TestNoLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(1))
		defer stop()
		got := new(recorder)
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub", Applier: got})
		src.open("pub").live(0, "a0")
		expect(t, "applied", got, "a0")
	})
}

// TestSamples proves that of each kind of what is dropped the first one since
// the last look is kept, with its stream and why, and never anything that the
// message said.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "secret"
		r, pub := startRig(t, "")
		defer r.stop()
		add(t, r.subs, StreamConfig{Rank: rank(1), Endpoint: "pub1", Applier: &IndexApplier{
			Converter: NewConverter(hashing.Layout{BlockSize: 2}, 1, nil), Index: r.index, Slot: 1,
		}})
		want := func(what string, want ...Sample) {
			t.Helper()
			synctest.Wait()
			if got := r.subs.Samples(); !slices.Equal(got, want) {
				t.Errorf("%s: samples %v, want %v", what, got, want)
			}
		}
		want("nothing came")
		pub.live(0, r.batch(0, 0, storedEvent(1), list{"BlockRemoved", list{}}, dict{
			"type": "BlockStored", "locality": "REMOTE",
			"block_hashes": list{1}, "token_ids": list{1, 2}, "block_size": 2,
		}))
		want("used, empty or not the rank's")

		for i := range 3 {
			pub.live(uint64(2*i+1), secret)
			pub.live(uint64(2*i+2), r.batch(0, 0, list{secret}, storedEvent(1)))
			pub.send([]byte(secret), []byte(secret), []byte(secret))
		}
		other := r.src.open("pub1")
		other.send([]byte(secret))
		other.live(0, secret)
		want("the first of each",
			Sample{rank(0), "message has frames of lengths 6 6 6"},
			Sample{rank(0), ErrNotABatch.Error()},
			Sample{rank(0), "bad_tag"})
		want("all have been returned")

		other.send(make([][]byte, 8)...)
		other.live(1, packed(t, list{1.5, list{storedEvent(1)}, secret}))
		other.live(2, r.batch(0, 1, storedEvent(1), list{"BlockStored", list{secret + secret}, nil, list{secret}, 3, nil, "GPU", nil}))
		want("another stream's",
			Sample{rank(1), "message has frames of lengths 0 0 0 0 0 …"},
			Sample{rank(1), ErrRank.Error()},
			Sample{rank(1), "bad_hash"})
	})
}

// rewindableApplier is an Applier that counts what it learns beside batches.
type rewindableApplier struct {
	recorder
	rewound int
}

func (a *rewindableApplier) Rewound() { a.rewound++ }

// TestRewound proves that an Applier that wants to know is called before batches
// come a second time, and that others need not want to.
func TestRewound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{}
		s, stop := startSubscribers(t, src, DefaultConfig(1))
		defer stop()
		wants, plain := new(rewindableApplier), new(recorder)
		add(t, s, StreamConfig{Rank: rank(0), Endpoint: "pub0", Replay: "rep0", Applier: wants})
		add(t, s, StreamConfig{Rank: rank(1), Endpoint: "pub1", Replay: "rep1", Applier: plain})
		for i := range 2 {
			pub := src.open(fmt.Sprint("pub", i))
			pub.status(true)
			pub.live(2, "a2") // joined late
			synctest.Wait()
			time.Sleep(DefaultConfig(1).Silence) // the replay server says nothing,
			pub.status(true)                     // and another connection asks again
			synctest.Wait()
			src.open(fmt.Sprint("rep", i)).answers("a0", "a1", "a2")
		}
		expect(t, "applied", &wants.recorder, "a2 a0 a1 a2")
		expect(t, "applied", plain, "a2 a0 a1 a2")
		if wants.rewound != 1 {
			t.Errorf("rewound %d times, want once", wants.rewound)
		}
	})
}

// TestNewEngineClearsIndex proves that a new engine's stream begins with an empty
// rank in the index.
func TestNewEngineClearsIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub := startRig(t, "")
		defer r.stop()
		overlap := func(name int) uint32 {
			synctest.Wait()
			var o indexer.Overlap
			r.index.Overlap(hashing.Layout{BlockSize: 2}.AppendLocal(nil, []uint32{uint32(name), uint32(name) + 1}, hashing.LocalSeed("", ""), nil), &o)
			device, _, _ := o.At(0)
			return device
		}
		pub.live(7, r.batch(0, 0, storedEvent(1)))
		if got := overlap(1); got != 1 {
			t.Fatalf("overlap %d, want 1", got)
		}
		pub.live(0, r.batch(0, 0, storedEvent(5)))
		if before, after := overlap(1), overlap(5); before != 0 || after != 1 {
			t.Errorf("overlap %d of the old engine's block, %d of the new one's", before, after)
		}
	})
}
