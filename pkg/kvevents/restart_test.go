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
	seen     bool // the connection is lost and comes again before the live messages
	identify bool // the new engine's messages differ from those of the old one
}

// run plays the history, and returns what the engine has sent and what is applied at
// the end, limits.silence after the reconnect.
func (c restartCase) run(t *testing.T) (sent, applied map[string]bool, clears int) {
	sc := newScript(t, c.replay)
	engine, seq := "a", 0
	var ring []message
	publish := func(live bool) {
		m := message{seq: uint64(seq), payload: fmt.Appendf(nil, "%s%d", engine, seq)}
		seq++
		ring = append(ring, m)
		if live {
			sc.s.live(m, sc.now)
		}
	}
	serve := func() {
		for sc.asked {
			sc.asked = false
			from, _ := sc.s.granted(sc.now)
			for _, m := range slices.Clone(ring) {
				if m.seq >= from && sc.s.replay.state == stateReplaying {
					sc.s.answer(m, false, sc.now)
				}
			}
			if sc.s.replay.state == stateReplaying {
				sc.s.answer(message{}, true, sc.now)
			}
		}
	}
	sc.s.connected(sc.now)
	serve()
	for range c.before {
		publish(true)
		serve()
	}
	if c.seen {
		sc.s.disconnected(sc.now)
	}
	if c.restart {
		seq, ring = 0, nil
		if c.identify {
			engine = "b"
		}
	}
	for range c.missed {
		publish(false)
	}
	if c.seen {
		sc.s.connected(sc.now)
		serve()
	}
	for range c.after {
		publish(true)
		serve()
	}
	sc.now = sc.now.Add(5 * time.Second)
	sc.s.tick(sc.now)
	serve()

	sent, applied = map[string]bool{}, map[string]bool{}
	for _, m := range ring {
		sent[string(m.payload)] = true
	}
	for _, name := range sc.applied {
		if applied[name] = true; name == "clear" {
			clear(applied)
			clears++
		}
	}
	return sent, applied, clears
}

// shown reports whether what arrives tells of the restart.
func (c restartCase) shown() bool {
	last := c.before - 1
	switch {
	case c.replay && c.seen: // the ring tells
		return true
	case c.after == 0, c.missed > last: // nothing comes, or it continues the old numbers
		return false
	case c.missed == 0, c.seen: // a 0, or a low number on a new connection
		return true
	}
	return c.after > 1 && c.missed+1 < last // two rising low numbers
}

// TestRestarts proves for all short histories, against a model that knows which engine
// sent what, that nothing of an engine that is gone stays applied if what arrives tells
// of the restart, that with a replay endpoint everything of the new one is applied then,
// and that the rank of an engine that is the same is never cleared.
func TestRestarts(t *testing.T) {
	bools := []bool{false, true}
	played := 0
	for before := range 5 {
		for missed := range 5 {
			for after := range 5 - missed {
				for bits := range 16 {
					c := restartCase{
						before: before, missed: missed, after: after,
						restart: bools[bits&1], replay: bools[bits>>1&1], seen: bools[bits>>2&1], identify: bools[bits>>3],
					}
					played++
					sent, applied, clears := c.run(t)
					dead := maps.Clone(applied)
					maps.DeleteFunc(dead, func(name string, _ bool) bool { return sent[name] })
					switch {
					case !c.restart && clears > 0:
						t.Errorf("%+v: the rank of a live engine is cleared", c)
					case c.restart && c.shown() && len(dead) > 0:
						t.Errorf("%+v: %v stays", c, dead)
					case c.replay && c.seen && !maps.Equal(applied, sent):
						t.Errorf("%+v: applied %v of %v", c, applied, sent)
					}
				}
			}
		}
	}
	t.Logf("%d histories", played)
}
