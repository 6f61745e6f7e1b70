package selection_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lukechampine.com/blake3"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// naiveBindings are the ranks of sessions and of groups, by what lists call them.
type naiveBindings map[string]uint64

// groupName is what a list calls the group of the sessions that parent has started (Dynamo's name, see TestGroupName).
func groupName(parent string) string {
	sum := blake3.Sum256([]byte(parent))
	return hex.EncodeToString(sum[:])
}

// TestFinalAgainstNaive plays random histories of sessions that start each other, hard and soft: what is bound after each step
// is what a naive table has. The last request of a session ends it and the group of those that it has started, however it is told: with a
// reservation, with one of a pending selection, or without one as by the gateway. As in Dynamo, a hard session goes on if it has been
// bound anew since, and after a request that names its rank.
func TestFinalAgainstNaive(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { playFinals(t, seed, seed%2 == 0) })
	}
}

// use is a binding that a request has used: its name, and when that was bound.
type use struct {
	name  string
	since int
}

func playFinals(t *testing.T, seed uint64, hard bool) {
	w := family(t, func(c *node.Config) { c.Selection.SessionTTL, c.Selection.SessionGroups = time.Hour, true })
	rnd, bound := rand.New(rand.NewPCG(seed, 45)), naiveBindings{}
	ends := map[string][]string{}      // by reservation: what ends with it
	uses, times := map[string]use{}, 0 // by reservation: the binding that a hard session has used
	since := map[string]int{}          // when a name was bound
	names := []string{"a", "b", "c", "d"}
	for step := range 60 {
		id, session, parent := fmt.Sprint(step), names[rnd.IntN(4)], append(names, "", "", "")[rnd.IntN(7)]
		if parent == session {
			parent = ""
		}
		final := rnd.IntN(3) == 0
		change := func(r *selection.SelectRequest) {
			if r.Session, r.Parent, r.Final = session, parent, final; !hard {
				r.SessionMode, r.Groups = selection.SoftSessions, true
			}
		}
		bind := func(r uint64) {
			switch group := groupName(parent); {
			case parent == "":
				bound[session] = r
			case hard:
				bound[group] = r
			default:
				if _, homed := bound[session]; !homed { // the first request of a session is where its group is, too
					bound[group] = r
				}
				bound[session] = r
			}
			for name := range bound {
				if since[name] == 0 {
					times++
					since[name] = times
				}
			}
			if name := session; hard {
				if parent != "" {
					name = groupName(parent)
				}
				uses[id] = use{name, since[name]}
			}
			if final {
				ends[id] = []string{session, groupName(session)}
			}
		}
		unbind := func(names ...string) {
			for _, name := range names {
				delete(bound, name)
				delete(since, name)
			}
		}
		what := rnd.IntN(6)
		switch {
		case what == 0: // as by the gateway
			w.EndSession(servicetest.Scope, "", session)
			unbind(session, groupName(session))
		case what == 1 && len(ends) > 0:
			id := slices.Sorted(maps.Keys(ends))[0]
			if err := w.Free(id); err != nil {
				t.Fatal(err)
			}
			if u := uses[id]; !hard || since[u.name] == u.since {
				unbind(ends[id]...)
			}
			delete(ends, id)
		case what == 2 && hard:
			sel := selectPending(w, id, child(1, uint32(step)), change)
			if _, err := reservePending(w, id); err != nil {
				t.Fatal(err)
			}
			bind(sel.Rank.Worker)
		case what == 3: // binds nothing
			if err := attempt(w, id, child(1, uint32(step)), change, pinnedTo(1)); err != nil {
				t.Fatal(err)
			}
			if final && !hard {
				ends[id] = []string{session, groupName(session)}
			}
		default:
			sel, err := reserve(w, id, child(1, uint32(step)), change)
			if err != nil {
				t.Fatal(err)
			}
			bind(sel.Rank.Worker)
		}
		got := naiveBindings{}
		for _, s := range w.ListSessions(&selection.SessionQuery{Limit: 100}).Sessions {
			got[s.Name] = s.Home.Worker
		}
		if !maps.Equal(got, bound) {
			t.Fatalf("seed %d, step %d (%d, session %s of %q, final %t): bound are %v, want %v", seed, step, what, session, parent, final, got, bound)
		}
		time.Sleep(time.Second)
	}
}

// TestFinalIsLearned: sessions whose first request is their last one do not come back, hard ones as well as soft ones, so that those of
// their kind are not expected back.
func TestFinalIsLearned(t *testing.T) {
	for _, mode := range []selection.SessionMode{selection.HardSessions, selection.SoftSessions} {
		synctest.Test(t, func(t *testing.T) {
			w := family(t, sessions)
			turn := func(session string, final bool) {
				change := func(r *selection.SelectRequest) { r.Session, r.SessionMode, r.Final = session, mode, final }
				if err := attempt(w, session, servicetest.Prompt(1, 8), change); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if err := w.Free(session); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 100 {
				turn(fmt.Sprint(i), true)
			}
			turn("s", false)
			list := w.ListSessions(&selection.SessionQuery{Limit: 10}).Sessions
			if len(list) != 1 || list[0].Chance > 0.1 {
				t.Errorf("mode %d: %+v", mode, list)
			}
		})
	}
}
