package selection_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// BenchmarkHint is a whole booking of a prompt of 4,096 blocks that other ranks have and the chosen one does not: the
// longest hint there is. Seven of eight ranks have 98,304 blocks each, and the source has other names for its blocks than the rank
// that was first, which are the dearest to list. It reports the median and the 99th percentile of the time and, of a busy
// machine, of the processor time. `-benchtime 10000x` books as often.
func BenchmarkHint(b *testing.B) {
	for _, mode := range []selector.FetchMode{selector.FetchOff, selector.FetchContract, selector.FetchPriced} {
		b.Run(mode.String(), func(b *testing.B) {
			const ranks, prompts = 8, 24
			w := servicetest.Start(b, servicetest.Policy(b, "predicted-ttft", ""), fetchMode(mode))
			for id := range uint64(ranks) {
				w.Put(servicetest.Record(id, 1, hinted("decode")))
			}
			prompt := func(of, n int) []uint32 {
				return servicetest.Prompt(uint32(of*prompts+n+1)<<16, selection.MaxFetchHashes*servicetest.BlockSize)
			}
			var asked []*selection.SelectRequest
			for id := ranks - 1; id >= 0; id-- { // the source is the last one
				if id == 1 {
					continue // the chosen rank has other requests' blocks alone
				}
				e := w.Engine(uint64(id), 0)
				for n := range prompts {
					of := id
					if id == ranks-1 {
						of = 0 // it has those of the source
					}
					e.Publish(0, e.Stored(prompt(of, n), servicetest.BlockSize, nil))
				}
				w.Settle()
			}
			for n := range prompts {
				req := servicetest.Ask(nil)
				req.Prompt = servicetest.Hashes(prompt(0, n))
				req.Hint, req.Pinned = selection.HintInAnswer, &catalog.Rank{Worker: 1}
				asked = append(asked, req)
			}
			book := func(req *selection.SelectRequest, id string) *selection.Fetch {
				req.ReservationID = &id
				got, err := w.Select(context.Background(), req, true)
				if err != nil {
					b.Fatal(err)
				}
				return got.Fetch
			}
			if mode == selector.FetchPriced {
				learnToCompute(b, w)
			}
			runtime.LockOSThread() // whose processor time is taken
			defer runtime.UnlockOSThread()
			var took, used []time.Duration
			hints := 0
			for b.Loop() {
				began, cpu := time.Now(), threadTime(b)
				f := book(asked[len(took)%prompts], "x")
				took, used = append(took, time.Since(began)), append(used, threadTime(b)-cpu)
				if f != nil {
					hints++
				}
				_ = w.PrefillComplete("x")
				_ = w.Free("x")
			}
			for name, of := range map[string][]time.Duration{"": took, "cpu-": used} {
				slices.Sort(of)
				b.ReportMetric(float64(of[len(of)/2].Microseconds()), "p50-"+name+"µs")
				b.ReportMetric(float64(of[len(of)*99/100].Microseconds()), "p99-"+name+"µs")
			}
			b.ReportMetric(float64(hints)/float64(len(took)), "hints/op")
		})
	}
}

// BenchmarkPriceFetches is a booking among 64 ranks, for each of which a fetch from one of eight is weighed against computing,
// while another request fetches.
func BenchmarkPriceFetches(b *testing.B) {
	const ranks, sources = 64, 8
	w := servicetest.Start(b, servicetest.Policy(b, "predicted-ttft", ""), fetchMode(selector.FetchPriced))
	tokens := servicetest.Prompt(1, 512*servicetest.BlockSize)
	for id := range uint64(ranks) {
		w.Put(servicetest.Record(id, 1, hinted("decode")))
		if id >= ranks-sources {
			e := w.Engine(id, 0)
			e.Publish(0, e.Stored(tokens, servicetest.BlockSize, nil))
		}
	}
	w.Settle()
	learnToCompute(b, w)
	req := servicetest.Ask(nil)
	req.Prompt, req.Hint = servicetest.Hashes(tokens), selection.HintInAnswer
	book := func(id string, pinned *catalog.Rank) *selection.Fetch {
		req.ReservationID, req.Pinned = &id, pinned
		got, err := w.Select(context.Background(), req, true)
		if err != nil {
			b.Fatal(err)
		}
		return got.Fetch
	}
	if book("fetches", &catalog.Rank{Worker: 1}) == nil {
		b.Fatal("it does not fetch")
	}
	b.ReportAllocs()
	for b.Loop() {
		book("x", nil)
		if err := w.Free("x"); err != nil {
			b.Fatal(err)
		}
	}
}

// threadTime returns the processor time of the thread.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
