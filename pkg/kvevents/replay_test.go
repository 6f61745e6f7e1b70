package kvevents

import (
	"bytes"
	"math"
	"testing"
	"time"
)

func frames(f ...string) [][]byte {
	out := make([][]byte, len(f))
	for i := range f {
		out[i] = []byte(f[i])
	}
	return out
}

const (
	seven = "\x00\x00\x00\x00\x00\x00\x00\x07"
	ones  = "\xff\xff\xff\xff\xff\xff\xff\xff"
)

func TestParseLive(t *testing.T) {
	tests := map[string]struct {
		frames [][]byte
		seq    uint64
		ok     bool
	}{
		"plain":             {frames("", seven, "x"), 7, true},
		"any topic":         {frames("kv@pod@model", seven, "x"), 7, true},
		"topic of no text":  {frames("\xff\xfe", seven, "x"), 7, true},
		"highest number":    {frames("", ones, "x"), math.MaxUint64, true},
		"empty payload":     {frames("", seven, ""), 7, true},
		"nothing":           {frames(), 0, false},
		"one frame":         {frames("x"), 0, false},
		"two frames":        {frames(seven, "x"), 0, false},
		"four frames":       {frames("", "", seven, "x"), 0, false},
		"short number":      {frames("", seven[1:], "x"), 0, false},
		"long number":       {frames("", seven+"\x00", "x"), 0, false},
		"number and topic?": {frames(seven, "", "x"), 0, false},
	}
	for name, tc := range tests {
		m, ok := parseLive(tc.frames, time.Unix(1e9, 7))
		if ok != tc.ok || m.seq != tc.seq {
			t.Errorf("%s: %d, %v; want %d, %v", name, m.seq, ok, tc.seq, tc.ok)
		}
		if ok && m.received != 1e18+7 {
			t.Errorf("%s: received at %d", name, m.received)
		}
	}
}

func TestParseAnswer(t *testing.T) {
	tests := map[string]struct {
		frames  [][]byte
		seq     uint64
		end, ok bool
	}{
		"vLLM 0.25":              {frames("", seven, "x"), 7, false, true},
		"vLLM 0.26":              {frames("", "", seven, "x"), 7, false, true},
		"with a topic":           {frames("", "kv", seven, "x"), 7, false, true},
		"end, 3 frames":          {frames("", ones, ""), math.MaxUint64, true, true},
		"end, 4 frames":          {frames("", "", ones, ""), math.MaxUint64, true, true},
		"end by number":          {frames("", ones, "x"), math.MaxUint64, true, true},
		"end by payload":         {frames("", seven, ""), 7, true, true},
		"without the first ''":   {frames("kv", seven, "x"), 7, false, true},
		"number like a topic":    {frames("", seven, seven, "x"), 7, false, true},
		"nothing":                {frames(), 0, false, false},
		"two frames":             {frames(seven, "x"), 0, false, false},
		"five frames":            {frames("", "", "", seven, "x"), 0, false, false},
		"short number":           {frames("", seven[1:], "x"), 0, false, false},
		"short number, 4 frames": {frames("", seven, "", "x"), 0, false, false},
	}
	for name, tc := range tests {
		m, end, ok := parseAnswer(tc.frames)
		if ok != tc.ok || end != tc.end || ok && m.seq != tc.seq {
			t.Errorf("%s: %d, end %v, ok %v; want %d, %v, %v", name, m.seq, end, ok, tc.seq, tc.end, tc.ok)
		}
	}
}

func TestReplayRequest(t *testing.T) {
	got := replayRequest(7)
	if len(got) != 2 || len(got[0]) != 0 || string(got[1]) != seven {
		t.Errorf("request of frames %q", got)
	}
}

// FuzzReplayAnswer cuts arbitrary bytes into messages of arbitrary frames and
// gives them to a running replay: nothing panics, nothing is applied twice or
// out of order, and nothing is made of thin air.
func FuzzReplayAnswer(f *testing.F) {
	f.Add([]byte("\x03\x00\x08" + seven + "\x01x" + "\x04\x00\x00\x08" + ones + "\x00"))
	f.Add([]byte("\x03\x00\x08" + ones + "\x01x" + "\x02\x08" + seven + "\x00"))
	f.Add([]byte("\x04\x00\x02kv\x08" + seven + "\x03abc"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		sc := newScript(t, true)
		sc.run("up ask:0")
		last, any := uint64(0), false
		for len(raw) > 0 {
			var msg [][]byte
			msg, raw = cutFrames(raw)
			m, end, ok := parseAnswer(msg)
			if !ok {
				continue
			}
			if n := len(msg); !bytes.Equal(m.payload, msg[n-1]) || len(msg[n-2]) != 8 {
				t.Fatalf("frames %q read as %d %q", msg, m.seq, m.payload)
			}
			if !end && len(m.payload) == 0 {
				t.Fatal("an empty payload is no end")
			}
			before := len(sc.applied)
			sc.s.answer(m, end, sc.now)
			if len(sc.applied) > before {
				if any && m.seq <= last {
					t.Fatalf("%d applied after %d", m.seq, last)
				}
				last, any = m.seq, true
			}
		}
		sc.now = sc.now.Add(time.Minute)
		sc.s.tick(sc.now)
		if sc.s.replay.state.wanted() {
			t.Fatal("the replay never ends")
		}
	})
}

// cutFrames reads a count of frames, then length and bytes of each.
func cutFrames(raw []byte) (msg [][]byte, rest []byte) {
	n := int(raw[0] % 7)
	raw = raw[1:]
	for ; n > 0 && len(raw) > 0; n-- {
		size := min(int(raw[0]), len(raw)-1)
		msg = append(msg, raw[1:1+size])
		raw = raw[1+size:]
	}
	return msg, raw
}

// What is counted, in one story.
func TestStreamCounts(t *testing.T) {
	sc := newScript(t, true)
	sc.run(`up ask:0 +a0 +x1 +end a0 a1
		a5 ask:2 +a2 +a4 +a5 +end
		a5 a3 a6
		a9 ask:7 5s 1s
		b0 ask:0 +b0 ask:0 +b0 +end b1
		down`)
	n := &sc.n
	for name, c := range map[string]struct{ got, want uint64 }{
		"messages":     {n.Messages.Load(), 9},
		"replayed":     {n.Replayed.Load(), 7},
		"applied":      {n.Applied.Load(), 9},
		"undecodable":  {n.Undecodable.Load(), 1},
		"duplicates":   {n.Duplicates.Load(), 2},
		"gaps":         {n.Gaps.Load(), 2},
		"gaps lost":    {n.GapsLost.Load(), 2},
		"lost":         {n.MessagesLost.Load(), 3},
		"held":         {n.Held.Load(), 3},
		"restarts":     {n.Restarts.Load(), 1},
		"connects":     {n.Connects.Load(), 1},
		"disconnects":  {n.Disconnects.Load(), 1},
		"replays":      {n.ReplayStarts.Load(), 5},
		"complete":     {n.ReplayResults[ReplayComplete].Load(), 2},
		"left out":     {n.ReplayResults[ReplayNotContiguous].Load(), 1},
		"silent":       {n.ReplayResults[ReplaySilent].Load(), 1},
		"aborted":      {n.ReplayResults[ReplayAborted].Load(), 1},
		"own lost":     {sc.s.counts.Lost, 3},
		"own gaps":     {sc.s.counts.Gaps, 2},
		"own restarts": {sc.s.counts.Restarts, 1},
		"own replays":  {sc.s.counts.Replays, 5},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
}

// A number from nowhere must not make the counter of lost messages wrap.
func TestLostIsBounded(t *testing.T) {
	sc := newScript(t, false)
	sc.run("up a0 aMAX b0 bMAX c0 cMAX")
	if got := sc.n.MessagesLost.Load(); got != 3*maxLost {
		t.Errorf("%d messages lost", got)
	}
}

// Held messages are bounded in bytes too, and none is lost at the limit.
func TestHeldBytes(t *testing.T) {
	sc := newScript(t, true)
	sc.run("up ask:0")
	for seq := range uint64(3) {
		sc.s.live(message{seq: seq, payload: bytes.Repeat([]byte{'a'}, 400)}, sc.now)
	}
	if got := len(sc.applied); got != 3 || sc.s.held.bytes != 0 {
		t.Errorf("%d of 3 applied, %d bytes held", got, sc.s.held.bytes)
	}
	if sc.n.ReplayResults[ReplayOverflow].Load() != 1 {
		t.Error("no overflow counted")
	}
}

// TestLabels proves that every value that is a label has a text of its own, and
// that a value of a later version does no harm.
func TestLabels(t *testing.T) {
	check := func(what string, n int, text func(i int) string, unknown string) {
		seen := make(map[string]bool)
		for i := range n {
			if s := text(i); s == "" || seen[s] {
				t.Errorf("%s %d has the text %q", what, i, s)
			} else {
				seen[s] = true
			}
		}
		if got := text(n); got != unknown {
			t.Errorf("%s %d has the text %q, want %q", what, n, got, unknown)
		}
	}
	check("state", NumStreamStates, func(i int) string { return StreamState(i).String() }, "unknown")
	check("replay result", NumReplayResults, func(i int) string { return ReplayResult(i).String() }, "unknown")
	check("reason", NumReasons, func(i int) string { return Reason(i).String() }, "unknown")
	check("block outcome", NumBlockOutcomes, func(i int) string { return BlockOutcome(i).String() }, "unknown")
	check("kind", NumKinds, func(i int) string { return Kind(i).String() }, "unreadable")
}

// TestBadReplays proves that a stream counts its replays that failed or had gaps,
// and knows how the last of them ended.
func TestBadReplays(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		bad    uint64
		last   ReplayResult
	}{
		"none":                {"up ask:0 +a0 +end a2 ask:1 +a1 +end", 0, ReplayComplete},
		"silent":              {"up ask:0 +a0 +end a2 ask:1 5s", 1, ReplaySilent},
		"refused, then empty": {"up ask:0 refuse 1s a0 a2 ask:1 +end", 2, ReplayEmpty},
		"another engine":      {"up ask:0 +a0 +a1 +a2 +end down up ask:0 +b0 ask:0 +b0 +end b1", 0, ReplayComplete},
	} {
		sc := newScript(t, true)
		sc.run(tc.script)
		if got := sc.s.counts; got.BadReplays != tc.bad || got.BadReplay != tc.last {
			t.Errorf("%s: %d bad replays, the last %v; want %d, %v", name, got.BadReplays, got.BadReplay, tc.bad, tc.last)
		}
	}
}
