package node_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// fleetDumps is the other replicas: their dumps by URL.
type fleetDumps struct {
	mu    sync.Mutex
	dumps map[string]answer
	asked []string
}

// answer is what a replica answers to GET /dump, in parts: each waits until the
// test lets it go.
type answer struct {
	parts      chan []byte // nil: no one answers
	recovering bool
}

var errNobody = errors.New("connection refused")

func (f *fleetDumps) GetDump(ctx context.Context, url string) (io.ReadCloser, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, url)
	a := f.dumps[url]
	if a.parts == nil {
		return nil, false, errNobody
	}
	return io.NopCloser(&download{ctx: ctx, parts: a.parts}), a.recovering, nil
}

type download struct {
	ctx   context.Context // of one request
	parts <-chan []byte
	rest  []byte
}

func (d *download) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		select {
		case part, more := <-d.parts:
			if !more {
				return 0, io.EOF
			}
			d.rest = part
		case <-d.ctx.Done():
			return 0, d.ctx.Err()
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// whole is an answer that comes at once.
func whole(dump []byte) answer {
	parts := make(chan []byte, 1)
	parts <- dump
	close(parts)
	return answer{parts: parts}
}

// from makes a service recover from the given replicas, named a, b, ….
func from(f *fleetDumps, answers ...answer) func(*node.Config) {
	f.dumps = map[string]answer{}
	var peers []string
	for i, a := range answers {
		url := "http://" + string(rune('a'+i))
		f.dumps[url+"/dump"] = a
		peers = append(peers, url)
	}
	return func(c *node.Config) {
		c.Recovery = node.RecoveryConfig{Peers: peers, Fetch: f, Deadline: 30 * time.Second, Grace: 10 * time.Minute}
	}
}

// dumped returns the dump of a replica that has worker 1, with two ranks, and
// worker 2; each holds the first blocks of the prompt.
func dumped(t *testing.T, blocks ...int) []byte {
	t.Helper()
	w := servicetest.Start(t)
	defer w.Stop()
	w.Put(servicetest.Record(1, 2))
	w.Put(servicetest.Record(2, 1))
	for i, e := range []*servicetest.Engine{w.Engine(1, 0), w.Engine(1, 1), w.Engine(2, 0)} {
		if n := blocks[i]; n > 0 {
			e.Publish(uint32(i%2), e.Stored(servicetest.Prompt(1, n*servicetest.BlockSize), servicetest.BlockSize, nil))
		}
	}
	var buf bytes.Buffer
	if err := w.Dump(t.Context(), &buf, contract.V13); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// wantStage waits until nothing moves and checks where the recovery stands.
func wantStage(w *servicetest.World, stage node.RecoveryStage, ready bool) {
	w.T.Helper()
	synctest.Wait()
	st, ok := w.Recovery()
	if isReady, _, _ := w.Ready(); !ok || st.Stage != stage || isReady != ready {
		w.T.Errorf("recovery is %+v, ready %v; want stage %v, ready %v", st, isReady, stage, ready)
	}
	if over := stage == node.RecoveryApplied || stage == node.RecoveryEmpty; w.Recovering() == over {
		w.T.Errorf("in stage %v the service says that it recovers: %v", st.Stage, w.Recovering())
	}
}

// TestRecovery: blocks of a peer are there when their workers are, and Ready
// waits for them; selections do not.
func TestRecovery(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	synctest.Test(t, func(t *testing.T) {
		parts := make(chan []byte)
		w := servicetest.Start(t, from(new(fleetDumps), answer{parts: parts}))
		w.Put(servicetest.Record(1, 2)) // registered before the dump comes
		wantStage(w, node.RecoveryFetching, false)
		w.Book("early", servicetest.Prompt(1, 16))
		parts <- dump[:len(dump)-1]
		close(parts)
		wantStage(w, node.RecoveryApplied, true)
		w.Put(servicetest.Record(2, 1)) // and after it
		w.WantDevice(servicetest.Prompt(1, 16), "1/0:4 1/1:3 2/0:2")
		st, _ := w.Recovery()
		if st.Complete || st.Peer != "http://a" || st.Blocks != 9 || st.Entries == 0 {
			t.Errorf("status %+v", st)
		}
		// Live events go on where the dump ended.
		e, p := w.Engine(1, 1), servicetest.Prompt(1, 16)
		names := e.Names(p, servicetest.BlockSize)
		e.Publish(1, e.Stored(p[12:], servicetest.BlockSize, servicetest.Dict{"block_hashes": names[3:], "parent_block_hash": names[2]}))
		w.WantDevice(p, "1/0:4 1/1:4 2/0:2")
		w.Remove(2)
		w.Put(servicetest.Record(2, 1))
		w.WantDevice(p, "1/0:4 1/1:4 2/0:0")
	})
}

// TestRecoveryWithoutHybrids: what a rank with several attention groups has is not in a
// dump, as its further groups would be missing. Nothing waits for it, and the rank
// begins with its engine's next events.
func TestRecoveryWithoutHybrids(t *testing.T) {
	exact := func(c *node.Config) { c.Scopes.HybridExact = true }
	inGroup := func(e *servicetest.Engine, group int, kind string) servicetest.Dict {
		return e.Stored(servicetest.Prompt(1, 12), servicetest.BlockSize, servicetest.Dict{
			"group_idx": group, "kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": servicetest.BlockSize + 1,
		})
	}
	w := servicetest.Start(t, exact)
	w.Put(servicetest.Record(1, 2))
	plain, hybrid := w.Engine(1, 0), w.Engine(1, 1)
	plain.Publish(0, inGroup(plain, 0, "full_attention"))
	hybrid.Publish(1, inGroup(hybrid, 0, "full_attention"), inGroup(hybrid, 1, "sliding_window"))
	var buf bytes.Buffer
	if err := w.Dump(t.Context(), &buf, contract.V13); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, exact, from(new(fleetDumps), whole(buf.Bytes())))
		w.Put(servicetest.Record(1, 2))
		wantStage(w, node.RecoveryApplied, true)
		if st, _ := w.Recovery(); !st.Complete || st.Blocks != 3 || st.Skipped != 0 {
			t.Errorf("status %+v", st)
		}
		w.WantDevice(servicetest.Prompt(1, 12), "1/0:3 1/1:0")
		e := w.Engine(1, 1)
		e.Publish(1, inGroup(e, 0, "full_attention"), inGroup(e, 1, "sliding_window"))
		w.WantDevice(servicetest.Prompt(1, 12), "1/0:3 1/1:3")
	})
}

// TestRecoveryOrder: the next peer is asked only if the one before did not give
// all.
func TestRecoveryOrder(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	recovering := func() answer {
		a := whole([]byte("{}"))
		a.recovering = true
		return a
	}
	cases := map[string]struct {
		peers    []answer
		asked    int
		complete bool
		stage    node.RecoveryStage
		blocks   string
	}{
		"the first has all":         {[]answer{whole(dump), whole(nil)}, 1, true, node.RecoveryApplied, "1/0:4 1/1:3 2/0:2"},
		"the first does not answer": {[]answer{{}, whole(dump)}, 2, true, node.RecoveryApplied, "1/0:4 1/1:3 2/0:2"},
		"the first is recovering":   {[]answer{recovering(), whole(dump)}, 2, true, node.RecoveryApplied, "1/0:4 1/1:3 2/0:2"},
		"the first has a bad entry": {[]answer{whole([]byte(`{"x":1}`)), whole(dump)}, 2, true, node.RecoveryApplied, "1/0:4 1/1:3 2/0:2"},
		"all start together":        {[]answer{recovering()}, 1, false, node.RecoveryApplied, "1/0:0 1/1:0 2/0:0"},
		"no peer answers":           {[]answer{{}, {}}, 2, false, node.RecoveryEmpty, "1/0:0 1/1:0 2/0:0"},
		"an answer that is no dump": {[]answer{whole([]byte("<html>"))}, 1, false, node.RecoveryEmpty, "1/0:0 1/1:0 2/0:0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := new(fleetDumps)
				w := servicetest.Start(t, from(f, tc.peers...))
				w.Put(servicetest.Record(1, 2))
				w.Put(servicetest.Record(2, 1))
				wantStage(w, tc.stage, true)
				w.WantDevice(servicetest.Prompt(1, 16), tc.blocks)
				if st, _ := w.Recovery(); len(f.asked) != tc.asked || st.Complete != tc.complete {
					t.Errorf("asked %v, status %+v", f.asked, st)
				}
				w.Stop()
			})
		})
	}
}

// TestRecoveryDeadline: Ready does not wait for ever; what comes later is used
// all the same.
func TestRecoveryDeadline(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	synctest.Test(t, func(t *testing.T) {
		parts := make(chan []byte)
		w := servicetest.Start(t, from(new(fleetDumps), answer{parts: parts}))
		w.Put(servicetest.Record(1, 2))
		time.Sleep(29 * time.Second)
		wantStage(w, node.RecoveryFetching, false)
		time.Sleep(time.Second)
		wantStage(w, node.RecoveryDeadline, true)
		parts <- dump
		close(parts)
		wantStage(w, node.RecoveryApplied, true)
		w.WantDevice(servicetest.Prompt(1, 16), "1/0:4 1/1:3")
		if st, _ := w.Recovery(); !st.Complete {
			t.Errorf("status %+v", st)
		}
	})
}

// TestPeersNotFound: who looks for peers may take until the deadline, and not longer.
func TestPeersNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(fleetDumps)
		w := servicetest.Start(t, from(f), func(c *node.Config) {
			c.Recovery.Find = func(ctx context.Context) []string {
				<-ctx.Done()
				return nil
			}
		})
		time.Sleep(29 * time.Second)
		wantStage(w, node.RecoveryFetching, false)
		time.Sleep(2 * time.Second)
		wantStage(w, node.RecoveryEmpty, false)
	})
}

// TestPeersGivenUp: Ready does not wait for peers that cannot be looked for, and the index is recovered behind live
// traffic if they are found later. Source: docs/run/fleet.md, "a start without NATS is ready after 5 s".
func TestPeersGivenUp(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		f := new(fleetDumps)
		w := servicetest.Start(t, from(f, whole(dump)), func(c *node.Config) {
			peers := c.Recovery.Peers
			c.Recovery.Peers = nil
			c.Recovery.Find = func(context.Context) []string {
				time.Sleep(20 * time.Second)
				return peers
			}
			c.Recovery.GivenUp = func() bool { return time.Since(began) >= 5*time.Second && time.Since(began) < 20*time.Second }
		})
		w.Put(servicetest.Record(1, 2))
		time.Sleep(4 * time.Second)
		wantStage(w, node.RecoveryFetching, false)
		time.Sleep(time.Second)
		_, _, _ = w.Ready() // as it is asked all the time
		wantStage(w, node.RecoveryDeadline, true)
		time.Sleep(15 * time.Second)
		wantStage(w, node.RecoveryApplied, true)
		w.WantDevice(servicetest.Prompt(1, 16), "1/0:4 1/1:3")
	})
}

// TestRecoveryAndLiveEvents: what is removed or cleared live while the dump is
// read does not come back; a worker that was deleted gets nothing more.
func TestRecoveryAndLiveEvents(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	p := servicetest.Prompt(1, 16)
	cases := map[string]struct {
		meanwhile func(w *servicetest.World)
		want      string
	}{
		"nothing": {func(*servicetest.World) {}, "1/0:4 1/1:3 2/0:2"},
		"removed": {func(w *servicetest.World) {
			e := w.Engine(1, 0)
			e.Publish(0, e.Removed(p, servicetest.BlockSize, 2, "GPU"))
		}, "1/0:2 1/1:3 2/0:2"},
		"cleared": {func(w *servicetest.World) { w.Engine(1, 1).Publish(1, servicetest.Cleared()) }, "1/0:4 1/1:0 2/0:2"},
		"deleted": {func(w *servicetest.World) { w.Remove(2); w.Put(servicetest.Record(2, 1)) }, "1/0:4 1/1:3 2/0:0"},
		"moved": {func(w *servicetest.World) {
			w.Remove(2)
			w.Remove(1)
			w.Put(servicetest.Record(1, 2))
			w.Put(servicetest.Record(2, 1))
		}, "1/0:0 1/1:0 2/0:0"},
		"restored": {func(w *servicetest.World) {
			e := w.Engine(1, 0)
			e.Publish(0, e.Removed(p, servicetest.BlockSize, 2, "GPU"), e.Stored(p, servicetest.BlockSize, nil))
		}, "1/0:4 1/1:3 2/0:2"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parts := make(chan []byte)
				w := servicetest.Start(t, from(new(fleetDumps), answer{parts: parts}))
				w.Put(servicetest.Record(1, 2))
				w.Put(servicetest.Record(2, 1))
				parts <- dump[:1]
				tc.meanwhile(w)
				w.Settle()
				parts <- dump[1:]
				close(parts)
				wantStage(w, node.RecoveryApplied, true)
				w.WantDevice(p, tc.want)
			})
		})
	}
}

// TestReplayReplacesDump: a replay from the engine's first message on is all
// that its rank has.
func TestReplayReplacesDump(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, from(new(fleetDumps), whole(dump)))
		wantStage(w, node.RecoveryApplied, false)
		w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.ReplayEndpoint = new("tcp://worker-2:7000") }))
		w.WantDevice(servicetest.Prompt(1, 16), "2/0:2")
		e := w.Engine(2, 0)
		w.Net.At(servicetest.Endpoint(2, 0)).Connect()
		synctest.Wait()
		replay := w.Net.At("tcp://worker-2:7000")
		replay.Send(nil, nil, make([]byte, 8), servicetest.Batch(0, e.Stored(servicetest.Prompt(1, 4), servicetest.BlockSize, nil)))
		replay.Send(nil, nil, bytes.Repeat([]byte{0xff}, 8), nil)
		synctest.Wait()
		w.WantDevice(servicetest.Prompt(1, 16), "2/0:1")
	})
}

// TestRecoveryGrace: blocks of workers that do not come go after a while; until
// then they are in this replica's own dump.
func TestRecoveryGrace(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, from(new(fleetDumps), whole(dump)))
		wantStage(w, node.RecoveryApplied, false)
		if n := len(dumpOf(w)["m:t"].Events); n == 0 {
			t.Error("recovered blocks are not in the dump")
		}
		w.Put(servicetest.Record(1, 2))
		time.Sleep(10*time.Minute + time.Second)
		w.Put(servicetest.Record(2, 1))
		w.WantDevice(servicetest.Prompt(1, 16), "1/0:4 1/1:3 2/0:0")
	})
}

// TestRecoveryOtherBlockSize: recovered blocks that are cut otherwise than a
// worker's go when it comes, and others are not taken.
func TestRecoveryOtherBlockSize(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	other := func(r *catalog.Record) { r.BlockSize = new(uint32(8)) }
	for name, first := range map[string]bool{"worker first": true, "dump first": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parts := make(chan []byte)
				w := servicetest.Start(t, from(new(fleetDumps), answer{parts: parts}))
				if first {
					w.Put(servicetest.Record(1, 2, other))
				}
				parts <- dump
				close(parts)
				wantStage(w, node.RecoveryApplied, first)
				w.Put(servicetest.Record(1, 2, other))
				w.WantDevice(servicetest.Prompt(1, 16), "1/0:0 1/1:0")
				if st, _ := w.Recovery(); st.Complete == first {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// TestRecoveryStops: the end of the service ends a fetch, whatever stage.
func TestRecoveryStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, from(new(fleetDumps), answer{parts: make(chan []byte)}, whole([]byte("{}"))))
		wantStage(w, node.RecoveryFetching, false)
		w.Stop()
		wantStage(w, node.RecoveryFetching, false)
	})
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, from(new(fleetDumps), whole([]byte("{}"))))
		wantStage(w, node.RecoveryApplied, false)
		w.Stop()
	})
}

// TestNoRecovery: without peers, or without KV events, nothing is waited for.
func TestNoRecovery(t *testing.T) {
	for name, w := range map[string]*servicetest.World{
		"no peers":  servicetest.Start(t),
		"no events": servicetest.Start(t, from(new(fleetDumps), whole([]byte("{}"))), servicetest.EventsOff),
	} {
		w.Put(servicetest.Record(1, 1))
		if _, configured := w.Recovery(); configured || w.Recovering() {
			t.Errorf("%s: a recovery runs", name)
		}
		if ready, _, _ := w.Ready(); !ready {
			t.Errorf("%s: not ready", name)
		}
		if got := w.Metrics(); got["recovery_stage"] != nil || got["recovery_entries_total"] != nil || got["recovery_skipped_total"] != nil {
			t.Errorf("%s: it has metrics", name)
		}
	}
}

// TestRecoveryMetrics: stage, entries and what was skipped, of all peers
// together.
func TestRecoveryMetrics(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, from(new(fleetDumps), whole([]byte(`{"x":1,"a:b":{"error":"no"}}`)), whole(dump), whole(dump)))
		wantStage(w, node.RecoveryApplied, false)
		m := w.Metrics()
		if stage := servicetest.Sum(m["recovery_stage"], "applied"); stage != 1 || servicetest.Sum(m["recovery_stage"]) != 1 {
			t.Errorf("stage %v", m["recovery_stage"])
		}
		st, _ := w.Recovery()
		if n := servicetest.Sum(m["recovery_entries_total"]); n == 0 || n != float64(st.Entries) {
			t.Errorf("%v entries, status %+v", n, st)
		}
		if bad, failed := servicetest.Sum(m["recovery_skipped_total"], "bad_key"), servicetest.Sum(m["recovery_skipped_total"], "error_entry"); bad != 1 || failed != 1 || st.Skipped != 2 {
			t.Errorf("skipped %v, status %+v", m["recovery_skipped_total"], st)
		}
	})
}

// TestRecoveryFromBrokenStream: what came before a peer broke off stays, and the
// next one gives the rest.
func TestRecoveryFromBrokenStream(t *testing.T) {
	dump := dumped(t, 4, 3, 2)
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, from(new(fleetDumps), whole(dump[:len(dump)/2]), whole(dump)))
		w.Put(servicetest.Record(1, 2))
		w.Put(servicetest.Record(2, 1))
		wantStage(w, node.RecoveryApplied, true)
		w.WantDevice(servicetest.Prompt(1, 16), "1/0:4 1/1:3 2/0:2")
		if st, _ := w.Recovery(); !st.Complete || st.Peer != "http://b" {
			t.Errorf("status %+v", st)
		}
	})
}
