package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// chats makes a trace of 12,000 requests without a file: conversations that begin
// with one of 40 system prompts (a few of them are used by most), whose every turn
// sends all that was said before. Prompts are 512 to 65,536 tokens long, in
// whole and broken blocks of 512.
func chats(seed uint64) []traceReq {
	const requests, systems, longest = 12000, 40, 128 // longest: blocks of a prompt
	rng := rand.New(rand.NewPCG(seed, 18))
	zipf := rand.NewZipf(rng, 1.3, 2, systems-1)
	next := int64(1)
	fresh := func(n int) (ids []int64) {
		for range n {
			ids = append(ids, next)
			next++
		}
		return ids
	}
	// A heavy tail: half are shorter than the median, one of a hundred 20 times longer.
	blocks := func(median float64) int {
		return 1 + int(median*math.Exp(rng.NormFloat64()*1.3))
	}
	prefixes := make([][]int64, systems)
	for i := range prefixes {
		prefixes[i] = fresh(blocks(2))
	}
	open := make([][]int64, 200) // conversations under way
	var trace []traceReq
	at := 0.0
	for len(trace) < requests {
		i := rng.IntN(len(open))
		ids := open[i]
		if ids == nil || len(ids) >= longest || rng.IntN(6) == 0 {
			ids = prefixes[zipf.Uint64()]
		}
		ids = append(ids[:len(ids):len(ids)], fresh(blocks(3))...)
		ids = ids[:min(len(ids), longest)]
		open[i] = ids
		at += rng.ExpFloat64() * 300
		trace = append(trace, traceReq{
			TimestampMs:  int64(at),
			InputLength:  len(ids)*traceBlock - rng.IntN(traceBlock),
			OutputLength: 1 + int(200*math.Exp(rng.NormFloat64())),
			HashIDs:      ids,
		})
	}
	return trace
}

// openTrace reads the trace of a file, or makes one of "chats" or "chats:SEED".
func openTrace(name string, most int) ([]traceReq, error) {
	kind, seed, _ := strings.Cut(name, ":")
	if kind != "chats" {
		return loadTrace(name, most)
	}
	n := uint64(1)
	if seed != "" {
		var err error
		if n, err = strconv.ParseUint(seed, 10, 64); err != nil {
			return nil, fmt.Errorf("trace %q: the seed is not a number", name)
		}
	}
	trace := chats(n)
	if most > 0 {
		trace = trace[:min(most, len(trace))]
	}
	return trace, nil
}
