package node_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/node/statefile"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// stateful is a world whose state is on disk.
type stateful struct {
	*servicetest.World
	state *statefile.State
	save  func() // writes a snapshot, and ends the world
}

// startAt runs a service with the state of a directory.
func startAt(t testing.TB, path string, change ...func(*node.Config)) *stateful {
	t.Helper()
	dir, err := statefile.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &stateful{World: servicetest.Start(t, change...)}
	w.state = w.KeepState(dir, time.Hour)
	w.state.Restore()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.state.Run(ctx) }()
	w.save = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.Stop()
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.save)
	return w
}

// states is how many ranks of the snapshot are in a state.
func (s *stateful) states(name string) uint64 { return s.state.Collector().Read().Ranks[name] }

// TestStateNotProved: blocks of a snapshot stay away where the worker is another one
// meanwhile, or where peers give the index.
func TestStateNotProved(t *testing.T) {
	for name, tt := range map[string]struct {
		config func(*node.Config)
		change func(*catalog.Record)
		want   string // state of the rank; "" if it is not looked at
	}{
		"nothing has changed": {want: "proved"},
		"another block size":  {change: func(r *catalog.Record) { r.BlockSize = new(uint32(8)) }, want: "refuted"},
		"eagle":               {change: func(r *catalog.Record) { r.IsEagle = new(true) }, want: "refuted"},
		"another endpoint": {change: func(r *catalog.Record) {
			r.KVEventsEndpoints = map[uint32]string{0: "tcp://elsewhere:5000"}
		}, want: "pending"},
		"another scope": {change: func(r *catalog.Record) { r.Scope.Tenant = "other" }, want: "pending"},
		"an index from peers": {config: func(c *node.Config) {
			c.Recovery = node.RecoveryConfig{Peers: []string{"http://peer"}, Fetch: noDump{}, Deadline: time.Second, Grace: time.Second}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			w := startAt(t, path)
			w.Put(servicetest.Record(1, 1))
			engine := w.Engine(1, 0)
			tokens := servicetest.Prompt(1, 12)
			engine.Publish(0, engine.Stored(tokens, servicetest.BlockSize, nil))
			w.Settle()
			w.WantDevice(tokens, "1/0:3")
			w.save()

			var changes []func(*node.Config)
			if tt.config != nil {
				changes = append(changes, tt.config)
			}
			again := startAt(t, path, changes...)
			if tt.change != nil {
				again.Put(servicetest.Record(1, 1, tt.change))
			}
			workers := again.Workers(nil, nil)
			next := again.Net.Engine(workers[0].KVEventsEndpoints[0], 0)
			next.Seq = engine.Seq
			next.Deliver(servicetest.Batch(0))
			again.Settle()
			want := "1/0:0"
			if tt.want == "proved" {
				want = "1/0:3"
			}
			if tt.change == nil {
				again.WantDevice(tokens, want)
			}
			if got := again.state.Collector().Read().Ranks; tt.want != "" && got[tt.want] != 1 {
				t.Errorf("ranks %v, want one %s", got, tt.want)
			}
			if blocks := servicetest.Sum(again.Metrics()["index_blocks"]); (blocks == 3) != (tt.want == "proved") {
				t.Errorf("%v blocks in the index", blocks)
			}
		})
	}
}

// TestStateServerKey: a worker of a snapshot with the CURVE key of an engine, from an earlier
// release, comes back as incomplete, says why, and is kept so by the next snapshot.
func TestStateServerKey(t *testing.T) {
	path := t.TempDir()
	w := startAt(t, path)
	old := servicetest.Record(1, 1, func(r *catalog.Record) { r.KVEventsServerKey = new("key") })
	if _, err := w.PutWorker(old); err != nil {
		t.Fatal(err)
	}
	w.Put(servicetest.Record(2, 1))
	for range 2 {
		w.save()
		w = startAt(t, path)
		workers := w.Workers(nil, nil)
		if len(workers) != 2 || workers[0].Lifecycle != catalog.Incomplete || workers[1].Lifecycle != catalog.Schedulable {
			t.Fatalf("workers %+v", workers)
		}
		if why := workers[0].Explain(); len(why) != 1 || why[0] != "kv_events_server_key: "+catalog.NoServerKey {
			t.Errorf("reasons %q", why)
		}
	}
}

// TestStateWithoutHybrids: what a rank with several attention groups has is not in a
// snapshot, as its further groups would be missing.
func TestStateWithoutHybrids(t *testing.T) {
	path := t.TempDir()
	exact := func(c *node.Config) { c.Scopes.HybridExact = true }
	w := startAt(t, path, exact)
	w.Put(servicetest.Record(1, 1))
	engine := w.Engine(1, 0)
	tokens := servicetest.Prompt(1, 12)
	main := engine.Stored(tokens, servicetest.BlockSize, servicetest.Dict{"group_idx": 0, "kv_cache_spec_kind": "full_attention"})
	window := maps.Clone(main)
	maps.Copy(window, servicetest.Dict{"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": servicetest.BlockSize + 1})
	engine.Publish(0, main, window)
	gone := servicetest.Dict{"type": "BlockRemoved", "group_idx": 1, "block_hashes": window["block_hashes"].([]uint64)[2:]}
	engine.Publish(0, gone)
	w.Settle()
	w.WantDevice(tokens, "1/0:2")
	w.save()

	again := startAt(t, path, exact)
	if got := again.state.Collector().Read().Ranks["pending"]; got != 0 {
		t.Errorf("%d ranks of the snapshot wait for a proof", got)
	}
}

// noDump is a peer that does not answer.
type noDump struct{}

func (noDump) GetDump(context.Context, string) (io.ReadCloser, bool, error) {
	return nil, false, servicetest.ErrRefused
}

// TestStateExpires: after ten minutes without a proof the blocks are dropped; the
// stream goes on.
func TestStateExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		w := startAt(t, path)
		w.Put(servicetest.Record(1, 1))
		engine := w.Engine(1, 0)
		engine.Publish(0, engine.Stored(servicetest.Prompt(1, 12), servicetest.BlockSize, nil))
		w.Settle()
		w.save()

		again := startAt(t, path)
		time.Sleep(10*time.Minute - time.Second)
		synctest.Wait()
		if n := again.states("pending"); n != 1 {
			t.Errorf("%d pending before the time is over", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := again.states("expired"); n != 1 {
			t.Errorf("%d expired", n)
		}
		next := again.Engine(1, 0)
		next.Seq = engine.Seq
		next.Publish(0, next.Stored(servicetest.Prompt(2, 8), servicetest.BlockSize, nil))
		again.Settle()
		again.WantDevice(servicetest.Prompt(1, 12), "1/0:0")
		again.WantDevice(servicetest.Prompt(2, 8), "1/0:2")
	})
}

// TestStateMutated: with a damaged snapshot the service starts, and claims what the
// engines have or nothing.
func TestStateMutated(t *testing.T) {
	files := 200
	if testing.Short() {
		files = 20
	}
	path := t.TempDir()
	w := startAt(t, path)
	w.Put(servicetest.Record(1, 2))
	var engines []*servicetest.Engine
	for dp := range uint32(2) {
		e := w.Engine(1, dp)
		e.Publish(dp, e.Stored(servicetest.Prompt(1+dp, 12), servicetest.BlockSize, nil))
		engines = append(engines, e)
	}
	w.Settle()
	w.Book("r", servicetest.Prompt(1, 12))
	w.save()
	file := filepath.Join(path, "snapshot")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(files) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		bad := append([]byte(nil), good...)
		switch rnd.IntN(4) {
		case 0:
			bad = bad[:rnd.IntN(len(bad))]
		case 1: // as it was
		default:
			bad[rnd.IntN(len(bad))] ^= 1 << rnd.IntN(8)
		}
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		again := startAt(t, path)
		workers, want := again.Workers(nil, nil), "1/0:0 1/1:0"
		if string(bad) != string(good) {
			if len(workers) != 0 {
				t.Fatalf("seed %d: %d workers of a damaged file", seed, len(workers))
			}
			again.Put(servicetest.Record(1, 2))
		} else {
			want = "1/0:3 1/1:0"
		}
		for dp, e := range engines {
			next := again.Engine(1, uint32(dp))
			next.Seq = e.Seq
			next.Deliver(servicetest.Batch(uint32(dp)))
		}
		again.Settle()
		again.WantDevice(servicetest.Prompt(1, 12), want)
		again.save()
	}
}

// TestSessionsOnDisk: homes of sessions and of groups, and bindings, are where they were after a restart, for as long as
// they were to be known; what was bound to a worker that has gone is forgotten.
func TestSessionsOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		change := []func(*node.Config){servicetest.EventsOff, func(c *node.Config) {
			c.Selection.HomeTTL, c.Selection.SessionTTL = time.Hour, time.Hour
		}}
		w := startAt(t, path, change...)
		for id := range uint64(3) {
			w.Put(servicetest.Record(id, 1))
		}
		odd := "not UTF-8: \xff"
		for session, at := range map[string]uint64{"soft": 1, odd: 2, "hard": 1} {
			req := servicetest.Ask(servicetest.Prompt(1, 8))
			req.Session, req.Parent, req.Groups, req.AllowedWorkers, req.HasAllowedWorkers = session, "p", true, []uint64{at}, true
			if session != "hard" {
				req.SessionMode = selection.SoftSessions
			} else {
				req.Groups = false
			}
			if _, err := w.Select(t.Context(), req, true); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Minute)
		w.save()
		time.Sleep(30 * time.Minute)
		w = startAt(t, path, change...)
		known := func() (all [4]bool) {
			for i, session := range []string{"soft", odd, "hard"} {
				_, all[i] = w.SessionRank(servicetest.Scope, "", session)
			}
			req := servicetest.Ask(servicetest.Prompt(9, 8))
			req.Session, req.Parent, req.Groups, req.SessionMode = "new", "p", true, selection.LooseSessions
			x, err := w.Explain(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			all[3] = x.Home != nil
			return all
		}
		if got := known(); got != [4]bool{true, true, true, true} {
			t.Errorf("known after the restart: %v", got)
		}
		if r, _ := w.SessionRank(servicetest.Scope, "", odd); r.Worker != 2 {
			t.Errorf("at %v", r)
		}
		time.Sleep(10 * time.Minute)                 // an hour since they were used
		if got := known(); got != [4]bool{2: true} { // the request of the hard session was under way when it was saved
			t.Errorf("known after an hour: %v", got)
		}
		w.save()
	})
}

// TestPausesOnDisk: what was learned of the sessions' pauses is known after a restart, and learned anew where sessions are kept for another
// time since, or are off.
func TestPausesOnDisk(t *testing.T) {
	kept := func(ttl time.Duration) func(*node.Config) {
		return func(c *node.Config) { c.KVEvents, c.Selection.HomeTTL = false, ttl }
	}
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		w := startAt(t, path, kept(time.Hour))
		w.Put(servicetest.Record(1, 1))
		turn := func(session string, final bool) {
			req := servicetest.Ask(servicetest.Prompt(1, 8))
			req.ReservationID, req.Session, req.SessionMode, req.Final = &session, session, selection.SoftSessions, final
			if _, err := w.Select(t.Context(), req, true); err != nil {
				t.Fatal(err)
			}
			if err := w.Free(session); err != nil {
				t.Fatal(err)
			}
		}
		chance := func() float64 { return w.ListSessions(&selection.SessionQuery{Limit: 1}).Sessions[0].Chance }
		for i := range 100 {
			turn(fmt.Sprint(i), true)
			time.Sleep(time.Second)
		}
		turn("s", false)
		before := chance()
		w.save()
		w = startAt(t, path, kept(time.Hour))
		if got := chance(); got > 0.1 || math.Abs(got-before) > 0.01 {
			t.Errorf("after the restart a session comes back with %v, before with %v", got, before)
		}
		if n := w.state.Collector().Read().Failures["refused"]; n != 0 {
			t.Errorf("%d refused", n)
		}
		w.save()
		w = startAt(t, path, kept(30*time.Minute))
		if got := chance(); got < 0.4 {
			t.Errorf("kept for another time: %v", got)
		}
		w.save()
		w = startAt(t, path, servicetest.EventsOff)
		w.save()
	})
}

// TestLinksOnDisk: after a restart a fetch is predicted to take what it was before, over a link with a setup of 20 ms and 0.1 ms a
// token, without any fetch in between. What is damaged, or of another version, is not used, and counted.
func TestLinksOnDisk(t *testing.T) {
	priced := []func(*node.Config){servicetest.Policy(t, "predicted-ttft", ""), func(c *node.Config) { c.Selection.Fetch = selector.FetchPriced }}
	synctest.Test(t, func(t *testing.T) {
		path, n := t.TempDir(), 0
		w := startAt(t, path, priced...)
		for id := range uint64(2) {
			w.Put(servicetest.Record(id, 1, func(r *catalog.Record) {
				r.RouterHintWorkerType, r.RouterHintSourceControlEndpoints = new("any"), map[uint32]string{0: fmt.Sprint("tcp://", id)}
			}))
		}
		// book books a prompt on worker 1, of which worker 0 has all if it is to be fetched.
		book := func(tokens int, fetch bool) (id string, fetched float64) {
			n++
			prompt := servicetest.Prompt(uint32(n)<<16, tokens)
			if fetch {
				e := w.Engine(0, 0)
				e.Publish(0, e.Stored(prompt, servicetest.BlockSize, nil))
				w.Settle()
			}
			req := servicetest.Ask(prompt)
			req.ReservationID, req.Pinned, req.Hint, req.Explain = new(fmt.Sprint(n)), &catalog.Rank{Worker: 1}, selection.HintInAnswer, true
			got, err := w.Select(t.Context(), req, true)
			if err != nil {
				t.Fatal(err)
			}
			if (got.Fetch != nil) != fetch {
				t.Fatalf("request %d fetches from %+v", n, got.Fetch)
			}
			return fmt.Sprint(n), got.Explanation.Candidates[0].Fetch.Time
		}
		end := func(id string, took float64) { w.Serve(id, time.Duration(took*float64(time.Second))) }
		for i := range 150 {
			tokens := 16 + 16*(i%64)
			id, _ := book(tokens, false)
			end(id, 0.01+1e-3*float64(tokens))
		}
		for i := range 12 {
			tokens := 256 + 64*i
			id, _ := book(tokens, true)
			end(id, 0.011+0.02+1e-4*float64(tokens))
		}
		id, before := book(1024, true)
		end(id, 0.011+0.02+0.1024)
		if math.Abs(before-0.1224) > 0.02 {
			t.Fatalf("a fetch of 1,024 tokens is predicted to take %v s", before)
		}
		w.save()
		w = startAt(t, path, priced...)
		id, after := book(1024, true)
		if math.Abs(after-before) > 0.01 {
			t.Errorf("after the restart it is %v s, before %v s", after, before)
		}
		end(id, 0.011+0.1224)
		if n := w.state.Collector().Read().Failures["refused"]; n != 0 {
			t.Errorf("%d refused", n)
		}
		w.save()
	})
}
