package kvevents

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// restartCase is a history around a reconnect or a restart.
type restartCase struct {
	restart  bool // else the engine is the same
	before   int  // messages that the first engine sends, all received
	missed   int  // messages sent then that do not come live
	after    int  // messages that come live after them
	replay   bool // there is a replay endpoint
	ring     int  // messages that it keeps; at least 1, since a ring of 0 is never known (decision U6)
	seen     bool // the connection is lost and comes again before the live messages
	held     bool // the live messages come while the replay at the reconnect runs
	identify bool // the new engine's messages differ from those of the old one
}

// restartWorld is what a history shows to a stream: numbers and a ring.
type restartWorld struct {
	*script
	engine string
	next   uint64
	size   int       // of the ring
	ring   []message // of the engine that runs
}

func (w *restartWorld) publish(live bool) {
	m := message{seq: w.next, payload: fmt.Appendf(nil, "%s%d", w.engine, w.next)}
	w.next++
	if w.ring = append(w.ring, m); len(w.ring) > w.size {
		w.ring = w.ring[1:]
	}
	if live {
		w.s.live(m, w.now)
	}
}

// serve answers all replays that are asked for. meanwhile is called once after the first
// answer of the first one.
func (w *restartWorld) serve(meanwhile func()) {
	for w.asked {
		w.asked = false
		from, _ := w.s.granted(w.now)
		for _, m := range append(slices.Clone(w.ring), message{seq: endMark}) {
			if w.s.replay.state == stateReplaying && m.seq >= from {
				w.s.answer(m, m.seq == endMark, w.now)
			}
			meanwhile()
			meanwhile = func() {}
		}
	}
}

// run plays the history, and returns what the engine that runs has sent, what of it the stream
// could have, and what is applied at the end, limits.silence after the reconnect.
func (c restartCase) run(t *testing.T) (sent, sure, applied map[string]bool, clears int) {
	w := restartWorld{script: newScript(t, c.replay), engine: "a", size: c.ring}
	nothing := func() {}
	w.s.connected(w.now)
	w.serve(nothing)
	for range c.before {
		w.publish(true)
		w.serve(nothing)
	}
	sent, sure = map[string]bool{}, map[string]bool{}
	if c.seen {
		w.s.disconnected(w.now)
	}
	if c.restart {
		w.next, w.ring = 0, nil
		if c.identify {
			w.engine = "b"
		}
	}
	for range c.missed {
		w.publish(false)
	}
	had := func() {
		for _, m := range w.ring {
			sure[string(m.payload)] = true
		}
	}
	if c.seen {
		w.s.connected(w.now)
	}
	if c.held {
		w.serve(func() {
			for range c.after {
				w.publish(true)
			}
		})
	} else {
		w.serve(nothing)
		had()
		for range c.after {
			w.publish(true)
			w.serve(nothing)
			had()
		}
	}
	had()
	w.now = w.now.Add(5 * time.Second)
	w.s.tick(w.now)
	w.serve(nothing)

	for seq := range w.next {
		sent[fmt.Sprint(w.engine, seq)] = true
	}
	applied = map[string]bool{}
	for _, name := range w.applied {
		if applied[name] = true; name == "clear" {
			clear(applied)
			clears++
		}
	}
	return sent, sure, applied, clears
}

// shown reports whether what arrives tells of the restart.
func (c restartCase) shown() bool {
	last, start := c.before-1, max(0, c.missed-c.ring)
	switch {
	case c.replay && c.seen: // the ring tells, unless it starts above the old numbers
		return start <= last || start == 0
	case c.after == 0, c.missed > last: // nothing comes, or it continues the old numbers
		return false
	case c.missed == 0, c.seen: // a 0, or a low number on a new connection
		return true
	}
	return c.after > 1 && c.missed+1 < last // two rising low numbers
}

// restartCases returns all short histories.
func restartCases() (all []restartCase) {
	bools := []bool{false, true}
	for before := range 5 {
		for missed := range 5 {
			for after := range 5 {
				for bits := range 16 {
					c := restartCase{
						before: before, missed: missed, after: after, ring: 1,
						restart: bools[bits&1], replay: bools[bits>>1&1], seen: bools[bits>>2&1], identify: bools[bits>>3],
					}
					if !c.replay {
						all = append(all, c)
						continue
					}
					for _, c.ring = range []int{1, 2, 3, 100} {
						for _, c.held = range bools[:1+bits>>2&1] {
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	return all
}

// TestRestarts proves for all short histories, against a model that knows which engine
// sent what, that nothing of an engine that is gone stays applied if what arrives tells
// of the restart, that with a replay endpoint all that the new one still has is applied
// then, and that the rank of an engine that is the same is never cleared.
func TestRestarts(t *testing.T) {
	cases := restartCases()
	for _, c := range cases {
		sent, sure, applied, clears := c.run(t)
		dead, missing := maps.Clone(applied), maps.Clone(sure)
		maps.DeleteFunc(dead, func(name string, _ bool) bool { return sent[name] })
		maps.DeleteFunc(missing, func(name string, _ bool) bool { return applied[name] })
		switch {
		case !c.restart && clears > 0:
			t.Errorf("%+v: the rank of a live engine is cleared", c)
		case c.restart && c.shown() && len(dead) > 0:
			t.Errorf("%+v: %v stays", c, dead)
		case c.replay && c.seen && len(missing) > 0:
			t.Errorf("%+v: %v is missing, applied %v", c, missing, applied)
		}
	}
	t.Logf("%d histories", len(cases))
}
