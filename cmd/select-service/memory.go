package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/pkg/memory"
)

// gcPercent lets the heap grow to five times the live memory before the garbage collector runs.
// The index is not on the heap, so the live memory is only a few MiB, and the default would
// collect after every few MiB of requests. GOGC overrides it. Near the memory limit the
// collector runs earlier. If the live memory is large, as with thousands of streams, it runs
// after gcGarbage further bytes, but not before the heap has doubled.
const (
	gcPercent = 400
	gcGarbage = 32 << 20
)

// memoryLimit is the budget of the process and the runtime's memory limit.
type memoryLimit struct {
	budget *memory.Budget
	source string // origin of the budget: a setting, "cgroup" or "machine"
	// setsLimit: this process sets the runtime's memory limit, unless GOMEMLIMIT does. setsGC: it
	// sets the collector's pace, unless GOGC does.
	setsLimit, setsGC bool
	log               zerolog.Logger
}

// newMemory returns the budget of the configuration, else one derived from the available memory.
func newMemory(limits config.Limits, getenv func(string) string, log zerolog.Logger) *memoryLimit {
	m := &memoryLimit{source: "--max-memory", setsLimit: getenv("GOMEMLIMIT") == "", setsGC: getenv("GOGC") == "", log: log}
	total, available := limits.MaxMemory, memory.FindAvailable()
	if total == 0 {
		total, m.source = available.Default(), available.Source
	}
	if total > available.Bytes {
		log.Warn().Int64("max_memory", total).Int64("available", available.Bytes).Str("limited_by", available.Source).
			Msg("--max-memory is more than the process can have: it will be killed before requests are refused")
	}
	m.budget = memory.New(total)
	return m
}

// apply configures the collector, and logs the settings.
func (m *memoryLimit) apply(getenv func(string) string) {
	if m.setsGC {
		debug.SetGCPercent(gcPercent)
	}
	line := m.log.Info().Int64("max_memory", m.budget.Total()).Str("source", m.source)
	if m.setsLimit {
		debug.SetMemoryLimit(m.limit())
	} else {
		line.Str("gomemlimit", getenv("GOMEMLIMIT")) // already applied by the runtime
	}
	line.Msg("memory limit")
}

const (
	// memoryEvery is how often the memory is checked.
	memoryEvery = time.Second
	// trimEvery is the shortest time between two returns of memory to the system; each
	// takes a collection.
	trimEvery = 4 * time.Second
	// trimAbove is the memory, in bytes, from which it is returned while the process is quiet,
	// and quiet the most that a quiet process allocates between two checks. With these values
	// there are hardly more collections than without.
	trimAbove = 4 << 20
	quiet     = 8 << 20
	// Memory that was in use at a return may be garbage since, but only a collection finds out.
	// So a quiet process gets a second one trimAgainAfter later, if it has allocated
	// trimAgainAbove by then. (The runtime itself collects after two minutes.)
	trimAgainAfter = 15 * time.Second
	trimAgainAbove = 512 << 10
)

// keep manages the runtime's memory until ctx ends. The index and what was scanned are outside the heap,
// so it subtracts their bytes from the runtime's limit. After a peak, and while little happens,
// it returns memory to the system, which the runtime alone takes minutes to do: registrations,
// for example, leave several times the memory that they keep.
func (m *memoryLimit) keep(ctx context.Context) error {
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
			if l := m.limit(); m.setsLimit && l != limit {
				debug.SetMemoryLimit(l)
				limit = l
			}
			h := readHeap()
			if p := gcPercentFor(h.live); m.setsGC && p != percent {
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

// gcPercentFor returns the percentage (as GOGC) by which the heap may grow, for the given live memory
// in bytes.
func gcPercentFor(live int64) int {
	const step = 25 // so that it does not change all the time
	return int(min(max(100*gcGarbage/max(live, 1), 100), gcPercent)) / step * step
}

// limit returns the runtime's memory limit: the budget less what is outside the heap and a sixteenth for
// the program's code, but at least a third, below which the collector would run all the time.
func (m *memoryLimit) limit() int64 {
	total := m.budget.Total()
	const step = 1 << 20 // so that it does not change all the time
	outside := m.budget.Account(memory.Index).Used() + m.budget.Account(memory.Scanned).Used()
	return max(total-total/16-outside/step*step, total/3)
}

// isIdle reports whether the accounts of memory on the heap use little.
func (m *memoryLimit) isIdle() bool {
	var used int64
	for _, a := range m.budget.Accounts() {
		if a.Name() != memory.Index && a.Name() != memory.Scanned {
			used += a.Used()
		}
	}
	return used < m.budget.Total()/8
}

// heap has figures of the Go runtime's memory in bytes.
type heap struct {
	held      int64 // not returned to the system
	live      int64 // after the last collection
	garbage   int64 // lower bound of what a collection would free
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
