package restart_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// TestLarge tells what an index of 3.2 million entries costs: the part of a core that
// its snapshots take, and how long the next process needs.
func TestLarge(t *testing.T) {
	if !e2e.Alone() {
		t.Skip("needs the machine for itself: " + e2e.AloneEnv)
	}
	const workers, messages, blocks = 32, 100, 1000
	dir := t.TempDir()
	s := serve(t, dir, "1s")
	var engines []*engine
	for id := range uint64(workers) {
		engines = append(engines, newEngine(t, id, true))
	}
	register(t, s, engines)
	for _, e := range engines {
		for n := range messages {
			names, tokens := make([]uint64, blocks), make([]uint32, blocks*blockSize)
			for i := range names {
				names[i] = e.id<<48 | uint64(n)<<24 | uint64(i+1)
			}
			for i := range tokens {
				tokens[i] = uint32(e.id<<24) | uint32(n<<16) | uint32(i)
			}
			payload, err := msgpack.Marshal([]any{float64(n), []any{[]any{"BlockStored", names, nil, tokens, blockSize, nil}}, 0})
			if err != nil {
				t.Fatal(err)
			}
			e.ring = []zmqtest.Kept{{Seq: uint64(n), Payload: payload}}
			e.replay.SetRing(e.ring...)
			e.pub.Publish(uint64(n), payload)
		}
	}
	whole := func() error {
		n, err := s.Sum(t.Context(), "select_service_index_blocks")
		if err == nil && n != workers*messages*blocks {
			err = fmt.Errorf("%v entries", n)
		}
		return err
	}
	e2e.Eventually(t, "the index has all", whole)
	snapshotAfter(t, dir)
	began, cpu := time.Now(), cpuTime(t, s)
	snapshotAfter(t, dir)
	snapshotAfter(t, dir)
	share := (cpuTime(t, s) - cpu).Seconds() / time.Since(began).Seconds()
	info, err := os.Stat(filepath.Join(dir, "snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("snapshots: %.1f%% of a core for the whole process; %d bytes, %.1f an entry", 100*share, info.Size(), float64(info.Size())/(workers*messages*blocks))
	s.Kill()
	began = time.Now()
	s.Run()
	ready(t, s)
	t.Logf("ready after %v", time.Since(began))
	e2e.Eventually(t, "all blocks are back", whole)
	t.Logf("all blocks after %v", time.Since(began))
}

// cpuTime is the processor time that the process has taken.
func cpuTime(t *testing.T, s *e2e.Service) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	var ticks int
	for _, f := range fields[11:13] { // user and system time
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}
