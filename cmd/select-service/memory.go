package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/config"
)

// gcPercent lets the heap grow to five times the live memory before the collector
// runs. The index is not on the heap, so that the live memory is a few MiB, and the
// default would collect after every few MiB of requests. GOGC overrides it. Near the
// memory limit the collector runs earlier, and where the live memory is large, with
// thousands of streams, after gcGarbage bytes more, but not before it has doubled.
const (
	gcPercent = 400
	gcGarbage = 32 << 20
)

// memory is the budget of the process and the runtime's memory limit.
type memory struct {
	budget *budget.Budget
	source string // of the budget: a setting, "cgroup" or "machine"
	// follows: the runtime's limit is ours to set. GOMEMLIMIT takes it from us, and GOGC
	// the pace of the collector.
	follows, paces bool
	log            zerolog.Logger
}

// newMemory shares out what the configuration says, else what the process can have.
func newMemory(limits config.Limits, getenv func(string) string, log zerolog.Logger) *memory {
	m := &memory{source: "--max-memory", follows: getenv("GOMEMLIMIT") == "", paces: getenv("GOGC") == "", log: log}
	total, available := limits.MaxMemory, budget.FindAvailable()
	if total == 0 {
		total, m.source = available.Default(), available.Source
	}
	if total > available.Bytes {
		log.Warn().Int64("max_memory", total).Int64("available", available.Bytes).Str("limited_by", available.Source).
			Msg("--max-memory is more than the process can have: it will be killed before requests are refused")
	}
	m.budget = budget.New(total)
	return m
}

// apply sets up the collector and says what is in force.
func (m *memory) apply(getenv func(string) string) {
	if m.paces {
		debug.SetGCPercent(gcPercent)
	}
	line := m.log.Info().Int64("max_memory", m.budget.Total()).Str("source", m.source)
	if m.follows {
		debug.SetMemoryLimit(m.limit())
	} else {
		line.Str("gomemlimit", getenv("GOMEMLIMIT")) // the runtime has read it
	}
	line.Msg("memory limit")
}

const (
	// memoryEvery is how often the memory is looked at.
	memoryEvery = time.Second
	// trimEvery is how often memory is given back at most: it takes a collection.
	trimEvery = 4 * time.Second
	// trimAbove is the memory in bytes that is given back when the process is quiet, and
	// quiet how much it then allocates between two looks at most. Where it is, the
	// collections are hardly more than without.
	trimAbove = 4 << 20
	quiet     = 8 << 20
	// What was in use when memory was given back may have died since, and only a collection
	// finds it: a quiet process has another trimAgainAfter later, if it has allocated
	// trimAgainAbove by then. (The runtime has one after two minutes.)
	trimAgainAfter = 15 * time.Second
	trimAgainAbove = 512 << 10
)

// keep follows the budget until ctx ends: the index lies outside of the heap, so
// that its bytes are taken from the runtime's limit; and once a peak is over, or little
// happens, what was taken is given back to the system, which the runtime alone does in
// minutes: registrations, for one, leave several times what they keep.
func (m *memory) keep(ctx context.Context) error {
	every := time.NewTicker(memoryEvery)
	defer every.Stop()
	var trimmed time.Time
	limit := m.limit()
	allocated, percent := readHeap().allocated, gcPercent
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-every.C:
			if l := m.limit(); m.follows && l != limit {
				debug.SetMemoryLimit(l)
				limit = l
			}
			h := readHeap()
			if p := pace(h.live); m.paces && p != percent {
				debug.SetGCPercent(p)
				percent = p
			}
			isQuiet := h.allocated-allocated < quiet
			allocated = h.allocated
			due := m.isIdle() && h.held > m.budget.Total()/2 || isQuiet && h.garbage > trimAbove
			again := isQuiet && h.garbage > trimAgainAbove && now.Sub(trimmed) >= trimAgainAfter
			if again || due && now.Sub(trimmed) >= trimEvery {
				debug.FreeOSMemory()
				trimmed = now
			}
		}
	}
}

// pace returns the percentage by which the heap may grow with so much live memory.
func pace(live int64) int {
	const step = 25 // not at every change
	return int(min(max(100*gcGarbage/max(live, 1), 100), gcPercent)) / step * step
}

// limit is what the runtime may take: what the index and a sixteenth for the
// program's code leave, but never less than a third, below which it would collect all
// the time.
func (m *memory) limit() int64 {
	total := m.budget.Total()
	const step = 1 << 20 // not at every change
	return max(total-total/16-m.budget.Account(budget.Index).Used()/step*step, total/3)
}

// isIdle reports whether the accounts that lie on the heap use little.
func (m *memory) isIdle() bool {
	var used int64
	for _, a := range m.budget.Accounts() {
		if a.Name() != budget.Index {
			used += a.Used()
		}
	}
	return used < m.budget.Total()/8
}

// heap is the memory of the Go runtime in bytes.
type heap struct {
	held      int64 // not given back to the system
	live      int64 // after the last collection
	garbage   int64 // of what is held, what a collection would give back at least
	allocated int64 // since the start
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	n := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	return heap{held: n(0) - n(1), live: n(4), garbage: n(2) + n(3) - n(4), allocated: n(5)}
}
