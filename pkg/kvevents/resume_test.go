package kvevents

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/helpers/length"
)

// TestResume: what proves and what refutes that the engine of a checkpoint is still
// the same. The checkpoint is at number 7 of engine a, of which 3 to 7 were applied.
func TestResume(t *testing.T) {
	for _, tt := range []struct {
		name       string
		replayable bool
		script     string
		want       string
	}{
		{"replay meets the fingerprint and goes on", true, "up ask:7 a9 +a7 +a8 +a9 +end a10", "restore a8 a9 a10"},
		{"an idle engine", true, "up ask:7 +a7 +end quiet", "restore"},
		{"a server that ignores the number asked for", true, "up ask:7 +a5 +a6 +a7 +a8 +end", "restore a8"},
		{"another message under the number", true, "up ask:7 +b7 ask:0 +b0 +b1 +end", "discard b0 b1"},
		{"another message under an earlier number", true, "up ask:7 +b3 ask:0 +b0 +b1 +end", "discard b0 b1"},
		{"a ring that starts later", true, "up ask:7 +a8 ask:0 +a8 +a9 +end", "discard a8 a9"},
		{"an empty ring", true, "up ask:7 +end ask:0 +b0 +end b1", "discard b0 b1"},
		{"a silent server", true, "up ask:7 a8 6s", "discard a8"},
		{"a request that cannot be sent", true, "up ask:7 refuse a8", "discard a8"},
		{"the connection breaks and comes back", true, "up ask:7 down up ask:7 +a7 +a8 +end", "restore a8"},
		{"a replay that leaves a number out", true, "up ask:7 +a7 +a9 +end", "restore clear a9"},
		{"a replay that ends early, and live numbers jump", true, "up ask:7 +a7 +end a9 ask:8 +a9 +end", "restore clear a9"},
		{"the same, and the gap is filled", true, "up ask:7 +a7 +end a9 ask:8 +a8 +end", "restore a8 a9"},
		{"a later gap is one like any other", true, "up ask:7 +a7 +end a8 a10 ask:9 +a10 +end", "restore a8 a10"},
		{"live numbers go on", false, "up a8 a9", "restore a8 a9"},
		{"live numbers jump", false, "up a9 a10", "discard a9 a10"},
		{"live numbers fall", false, "up b0 b1", "discard b0 b1"},
		{"the last number again", false, "up b7 b8", "discard b7 b8"},
		{"a connection without a message", false, "up down up a8", "restore a8"},
		{"the replay endpoint goes", true, "up replay:off a8", "restore a8"},
		{"a new engine's first message", true, "up b0 ask:7 +end ask:0 +b0 +end b1", "discard b0 b1"},
		{"a new engine's first message, no replay", false, "up b0", "discard b0"},
		{"an idle engine whose ring ends below", true, "up ask:7 +b5 +b6 +end ask:0 +b5 +b6 +end", "discard b5 b6"},
		{"proved, then a 0 on the same connection", true, "up ask:7 +a7 +end b0 ask:0 +b0 +end ask:0 +b0 +end", "restore clear b0"},
		{"a replay endpoint comes", false, "up replay:on ask:7 +a7 +end", "restore"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := newScript(t, false)
			old.run("up a3 a4 a5 a6 a7")
			c, ok := old.s.checkpoint()
			if !ok {
				t.Fatal("no checkpoint")
			}
			sc := newScript(t, tt.replayable)
			sc.s.resume(&c)
			sc.run(tt.script)
			if got := strings.Join(sc.applied, " "); got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.script, got, tt.want)
			}
		})
	}
}

// TestResumeAfterOneMessage: a new engine's message 0 is not that of the checkpoint.
func TestResumeAfterOneMessage(t *testing.T) {
	for _, tt := range []struct {
		replayable   bool
		script, want string
	}{
		{true, "up ask:0 +a0 +end a1", "restore a1"},
		{true, "up ask:0 +b0 ask:0 +b0 +end b1", "discard b0 b1"},
		{true, "up ask:0 +end ask:0 +end b0", "discard b0"},
		{false, "up b0 b1", "discard b0 b1"},
		{false, "up a1", "restore a1"},
	} {
		old := newScript(t, false)
		old.run("up a0")
		c, ok := old.s.checkpoint()
		if !ok {
			t.Fatal("no checkpoint")
		}
		sc := newScript(t, tt.replayable)
		sc.s.resume(&c)
		sc.run(tt.script)
		if got := strings.Join(sc.applied, " "); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.script, got, tt.want)
		}
	}
}

// TestNoCheckpoint: a stream whose blocks may be wrong has none.
func TestNoCheckpoint(t *testing.T) {
	for _, tt := range []struct {
		name       string
		replayable bool
		script     string
		want       bool
	}{
		{"nothing applied", false, "up", false},
		{"in order", false, "up a3 a4", true},
		{"after a gap", false, "up a3 a5", false},
		{"after a gap and a clear", false, "up a3 a5 z6", true},
		{"a low number", false, "up a3 a4 b1", false},
		{"the connection is lost", false, "up a3 a4 down", true},
		{"a connection without a message", false, "up a3 a4 down up", true},
		{"numbers go on over a connection", false, "up a3 a4 down up a5", true},
		{"a new connection without its replay", true, "up ask:0 +a0 +end a1 down up ask:0 a2 6s", false},
		{"a new connection with its replay", true, "up ask:0 +a0 +end a1 down up ask:0 +a0 +a1 +end a2", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sc := newScript(t, tt.replayable)
			sc.run(tt.script)
			if _, ok := sc.s.checkpoint(); ok != tt.want {
				t.Errorf("checkpoint %t, want %t: %v", ok, tt.want, sc.s)
			}
		})
	}
}

// savedStream is what a process saves of a stream.
type savedStream struct {
	at     Checkpoint
	blocks map[int]int
}

// TestResumeAgainstModel: a process saves its streams at any time, the blocks while
// events go on, and another one resumes them after the engine has gone on, or was
// replaced. Once all is delivered, no copy is claimed that the engine does not have.
func TestResumeAgainstModel(t *testing.T) {
	worlds := length.Of(6000, 300, 80)
	restored := 0
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		w.s.replayable = w.rnd.IntN(3) > 0
		if !w.s.replayable {
			w.s.disconnected(w.now)
			w.s.connected(w.now)
		}
		for range w.rnd.IntN(300) {
			w.step()
		}
		at, ok := w.s.checkpoint()
		if !ok {
			continue
		}
		saved := savedStream{at, maps.Clone(w.applied)}
		for range w.rnd.IntN(30) { // the blocks are read meanwhile, each at another moment
			w.step()
			for b := range 12 {
				if w.rnd.IntN(20) == 0 {
					saved.blocks[b] = w.applied[b]
				}
			}
		}
		if w.s.breaks != at.breaks {
			continue
		}
		maps.DeleteFunc(saved.blocks, func(_, copies int) bool { return copies == 0 })
		restored += w.resumeFrom(t, seed, saved)
	}
	if restored < worlds/20 {
		t.Errorf("only %d of %d were resumed", restored, worlds)
	}
}

// resumeFrom replaces the stream by one that goes on from what was saved, and
// returns 1 if the blocks were restored.
func (w *world) resumeFrom(t *testing.T, seed uint64, saved savedStream) int {
	w.note("saved at %d..%d: %v", saved.at.Since, saved.at.Last, saved.blocks)
	w.flight, w.answers, w.ending, w.asked, w.silent = nil, nil, false, false, false
	for range w.rnd.IntN(4) {
		w.publish()
	}
	if w.rnd.IntN(3) == 0 {
		w.generation++
		w.seq, w.ring = 0, nil
		clear(w.blocks)
		clear(w.lastOp)
		clear(w.lastStore)
		w.note("restarted")
		for range w.rnd.IntN(60) {
			w.publish()
		}
	}
	var engine int
	_, _ = fmt.Sscan(string(saved.at.Recent[0].Ends[:32]), &engine)
	if !w.s.replayable && engine != w.generation && w.seq == saved.at.Last+1 {
		return 0 // another engine's numbers go on by chance: nothing tells them apart
	}
	w.flight = nil
	w.applied, w.doubted = map[int]int{}, map[int]bool{}
	old := w.s
	w.s = &stream{output: w, replays: w, counters: &w.n, replayable: old.replayable, limits: old.limits}
	w.s.resume(&saved.at)
	w.saved = saved.blocks
	w.loss = 0
	w.s.connected(w.now)
	for i := range 5 {
		w.settle()
		if i > 0 || w.s.replayable {
			for b, copies := range w.applied {
				if copies > w.blocks[b] && w.s.state() != Stale {
					for _, line := range w.log {
						t.Log(line)
					}
					t.Fatalf("seed %d: %d copies of block %d are claimed, the engine has %v; %v", seed, copies, b, w.blocks, w.s)
				}
			}
		}
		w.publish()
	}
	if w.saved == nil {
		return 1
	}
	return 0
}

// restored puts the saved blocks back, without what is known of their copies.
func (w *world) restored() {
	if len(w.applied) > 0 || w.saved == nil {
		panic("restored late or twice")
	}
	w.applied, w.saved = w.saved, nil
	w.doubt()
}

// TestResumeLimits: checkpoints from a damaged file do no harm.
func TestResumeLimits(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		number := func() uint64 {
			return []uint64{0, 1, 2, 1023, 1024, 1 << 40, 1<<64 - 1}[rnd.IntN(7)] - uint64(rnd.IntN(2))
		}
		c := Checkpoint{Since: number(), Last: number()}
		for range rnd.IntN(40) {
			c.Recent = append(c.Recent, Fingerprint{Number: number(), Length: rnd.IntN(4) - 1, Ends: make([]byte, 63+rnd.IntN(3))})
		}
		sc := newScript(t, rnd.IntN(2) == 0)
		sc.s.resume(&c)
		sc.s.connected(sc.now)
		for range 20 {
			m := message{seq: number(), payload: fmt.Append(nil, "a", rnd.IntN(3))}
			sc.now = sc.now.Add(time.Second)
			switch rnd.IntN(4) {
			case 0:
				sc.s.granted(sc.now)
			case 1:
				sc.s.answer(m, rnd.IntN(3) == 0, sc.now)
			case 2:
				sc.s.tick(sc.now)
			default:
				sc.s.live(m, sc.now)
			}
		}
		if n := len(slices.DeleteFunc(sc.applied, func(a string) bool { return a != "restore" && a != "discard" })); n > 1 {
			t.Fatalf("%d decisions about one checkpoint", n)
		}
	}
}
