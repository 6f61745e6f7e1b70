package restart_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

const (
	blockSize   = 4
	chains      = 6 // prompts that engines may have in their caches
	chainBlocks = 8
	ringSize    = 300 // messages that can be replayed
	model       = "m"
)

// engine is an engine's cache, played by the test, and what it publishes about it on
// real sockets.
type engine struct {
	t      *testing.T
	id     uint64
	pub    *zmqtest.Publisher
	replay *zmqtest.ReplayServer // nil: it has none

	seq    uint64 // of the next message
	ring   []zmqtest.Kept
	blocks [chains][chainBlocks]bool
	life   int // how often it was started
	joined int // subscriptions so far
}

func newEngine(t *testing.T, id uint64, replay bool) *engine {
	e := &engine{t: t, id: id, pub: zmqtest.NewPublisher(t, "")}
	t.Cleanup(e.pub.Close)
	if replay {
		e.replay = zmqtest.NewReplayServer(t, "", true)
		t.Cleanup(e.replay.Close)
	}
	return e
}

// record is the engine's registration.
func (e *engine) record() e2e.Object {
	r := e2e.Object{
		"worker_id": e.id, "model_name": model, "endpoint": fmt.Sprintf("http://w%d:8000", e.id),
		"block_size": blockSize, "kv_events_endpoint": e.pub.Endpoint,
		"kv_event_copies": "set", // it stores again what it has
	}
	if e.replay != nil {
		r["replay_endpoint"] = e.replay.Endpoint
	}
	return r
}

// prompt is a chain of blocks; all engines may have the same ones.
func prompt(chain, blocks int) []uint32 {
	tokens := make([]uint32, blocks*blockSize)
	for i := range tokens {
		tokens[i] = uint32(chain<<16 | i/blockSize<<8 | i%blockSize)
	}
	return tokens
}

// name is the engine's hash of a block, which is the same in every life of it.
func name(chain, block int) uint64 { return uint64(chain+1)<<32 | uint64(block+1) }

// held is how many leading blocks of a chain are in the cache.
func (e *engine) held(chain int) int {
	for i, held := range e.blocks[chain] {
		if !held {
			return i
		}
	}
	return chainBlocks
}

// store puts the leading blocks of a chain into the cache.
func (e *engine) store(chain, blocks int) {
	names := make([]uint64, blocks)
	for i := range names {
		names[i] = name(chain, i)
		e.blocks[chain][i] = true
	}
	e.publish([]any{"BlockStored", names, nil, prompt(chain, blocks), blockSize, nil})
}

// remove takes one block of a chain out of the cache.
func (e *engine) remove(chain, block int) {
	e.blocks[chain][block] = false
	e.publish([]any{"BlockRemoved", []uint64{name(chain, block)}})
}

func (e *engine) clear() {
	e.blocks = [chains][chainBlocks]bool{}
	e.publish([]any{"AllBlocksCleared"})
}

// work changes the cache at random.
func (e *engine) work(rnd *rand.Rand) {
	chain := rnd.IntN(chains)
	switch n := rnd.IntN(40); {
	case n == 0:
		e.clear()
	case n < 18:
		e.remove(chain, rnd.IntN(chainBlocks))
	default:
		e.store(chain, 1+rnd.IntN(chainBlocks))
	}
}

func (e *engine) publish(event []any) {
	e.t.Helper()
	at := float64(e.life) + float64(e.seq)/1e6
	payload, err := msgpack.Marshal([]any{at, []any{event}, 0})
	if err != nil {
		e.t.Fatal(err)
	}
	if e.ring = append(e.ring, zmqtest.Kept{Seq: e.seq, Payload: payload}); len(e.ring) > ringSize {
		e.ring = e.ring[1:]
	}
	if e.replay != nil {
		e.replay.SetRing(append([]zmqtest.Kept(nil), e.ring...)...)
	}
	e.pub.Publish(e.seq, payload)
	e.seq++
}

// restart is a new process of the engine, with an empty cache.
func (e *engine) restart() {
	e.life++
	e.seq, e.ring, e.blocks = 0, nil, [chains][chainBlocks]bool{}
	if e.replay != nil {
		e.replay.SetRing()
	}
	e.pub.Restart()
}

// followed waits until the service has subscribed once more.
func (e *engine) followed() {
	e.joined++
	e.pub.Subscriptions(e.joined)
}

// overlaps is how many blocks of each chain the service says that workers have.
func overlaps(ctx context.Context, s *e2e.Service) (map[uint64][chains]int, error) {
	all := make(map[uint64][chains]int)
	for c := range chains {
		var scores struct {
			Workers []struct {
				ID     uint64 `json:"worker_id"`
				Device int    `json:"device_blocks"`
			} `json:"workers"`
		}
		body := e2e.Object{"model_name": model, "token_ids": prompt(c, chainBlocks)}
		if err := s.Do(ctx, http.MethodPost, "/overlap_scores", body, &scores); err != nil {
			return nil, err
		}
		for _, w := range scores.Workers {
			row := all[w.ID]
			row[c] = w.Device
			all[w.ID] = row
		}
	}
	return all, nil
}

// claimed is an error if the service says that an engine has what it does not have,
// with exact also if it does not know of what it has.
func claimed(t *testing.T, s *e2e.Service, engines []*engine, exact bool) error {
	t.Helper()
	all, err := overlaps(t.Context(), s)
	if err != nil {
		return err
	}
	for _, e := range engines {
		for c, got := range all[e.id] {
			if want := e.held(c); got > want || exact && got < want {
				return fmt.Errorf("worker %d has %d blocks of chain %d, the service says %d", e.id, want, c, got)
			}
		}
	}
	return nil
}

// ranks is how many ranks of the snapshot are in a state.
func ranks(t *testing.T, s *e2e.Service, state string) int {
	t.Helper()
	a, err := s.Call(t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(a.Body)) {
		if v, ok := strings.CutPrefix(line, `select_service_snapshot_ranks{state="`+state+`"} `); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no ranks %s in /metrics", state)
	return 0
}

// ready waits until the service is ready.
func ready(t *testing.T, s *e2e.Service) {
	t.Helper()
	e2e.Eventually(t, "the service is ready", func() error { return s.Do(t.Context(), http.MethodGet, "/ready", nil, nil) })
}

// snapshotAfter waits for a snapshot that was begun later than all before the call.
func snapshotAfter(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "snapshot")
	seen := 0
	var last os.FileInfo
	e2e.Eventually(t, "two snapshots", func() error { // the first may have been begun before
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if last == nil || !os.SameFile(info, last) {
			last = info
			seen++
		}
		if seen < 3 {
			return errors.New("not yet")
		}
		return nil
	})
}
