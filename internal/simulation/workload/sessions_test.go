package workload

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSessions proves how lines of sessions become requests: each turn has the former prompt, its answer and what is new, comes
// after that answer, and after the sub-agents that began there have ended.
func TestSessions(t *testing.T) {
	all, err := ReadTrace(strings.NewReader(`{"session_id":"a","input_length":600,"output_length":50,"hash_ids":[1,2],"timestamp":1000.5}
{"session_id":"a","input_length":10,"output_length":100,"hash_ids":[3],"delay":500.5}
{"session_id":"b","input_length":20,"output_length":100,"hash_ids":[1],"timestamp":0,"parent_session_id":"a","parent_turn":1,"delay":250}
{"session_id":"b","input_length":5,"output_length":1,"hash_ids":[9],"delay":1000}
{"input_length":5,"output_length":1,"hash_ids":[9],"timestamp":2000}
`), 10)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		session, parent string
		at, pause       time.Duration
		after           []int
		prompt          int
	}
	ms := time.Millisecond
	want := []row{
		{"a", "", 1000*ms + ms/2, 0, nil, 600},
		{"", "", 2000 * ms, 0, nil, 5},
		{"b", "a", 2250*ms + ms/2, 250 * ms, []int{1}, 20}, // 50 tokens take a second
		{"b", "a", 5250*ms + ms/2, 1000 * ms, []int{3}, 20 + 100 + 5},
		{"a", "", 5771 * ms, 500*ms + ms/2, []int{1, 4}, 600 + 50 + 10}, // 20 ms for b's last token
	}
	if len(all) != len(want) {
		t.Fatalf("%d requests", len(all))
	}
	for i, w := range want {
		r := all[i]
		if r.ID != i+1 || r.Session != w.session || r.Parent != w.parent || r.At != w.at || r.Pause != w.pause || !slices.Equal(r.After, w.after) || len(r.Prompt) != w.prompt {
			t.Errorf("request %d: %q of %q at %v, %v after %v, %d tokens; want %+v", r.ID, r.Session, r.Parent, r.At, r.Pause, r.After, len(r.Prompt), w)
		}
	}
	a, b := all[0], all[4]
	if !slices.Equal(b.Prompt[:650], slices.Concat(a.Prompt, a.Output)) || !slices.Equal(all[2].Prompt, a.Prompt[:20]) {
		t.Error("a turn does not go on from the one before, or equal hash ids are not equal tokens")
	}
	for text, why := range map[string]string{
		`{"session_id":"b","input_length":5,"output_length":1,"hash_ids":[9],"parent_session_id":"a","parent_turn":1}`: "parent_turn 1 of session \"a\" is on no line before this one",
		`{"session_id":"b","input_length":5,"output_length":1,"hash_ids":[9],"delay":-1}`:                              "delay -1 is outside",
	} {
		if _, err := ReadTrace(strings.NewReader(text), 1); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestClosedLoops proves what generators say of sessions: a request comes its pause after the answers it waits for, at the pace
// that its population assumes, sub-agents begin together after their parent's turn, and the parent waits for all of them.
func TestClosedLoops(t *testing.T) {
	for name, all := range map[string][]Request{"chats": DefaultChats().Generate(1, 400), "agents": DefaultAgents().Generate(1, 600)} {
		waits, children := 0, 0
		for _, r := range all {
			if r.Session == "" && (len(r.After) > 0 || r.Parent != "") {
				t.Fatalf("%s: request %d is of no session, and waits", name, r.ID)
			}
			at := time.Duration(0)
			for _, id := range r.After {
				before := all[id-1]
				if id >= r.ID {
					t.Fatalf("%s: request %d waits for %d", name, r.ID, id)
				}
				at = max(at, before.At+seconds(float64(len(before.Output))/50)+r.Pause)
				switch {
				case before.Session == r.Session:
				case before.Session == r.Parent:
					children++
				case before.Parent == r.Session:
					waits++
				default:
					t.Errorf("%s: request %d of %q waits for one of %q", name, r.ID, r.Session, before.Session)
				}
			}
			if len(r.After) > 0 && r.At < at-time.Microsecond {
				t.Errorf("%s: request %d at %v, before %v", name, r.ID, r.At, at)
			}
		}
		if name == "agents" && (children < 20 || waits < 10) || name == "chats" && children+waits > 0 {
			t.Errorf("%s: %d sub-agents, %d waits for one", name, children, waits)
		}
	}
}

// TestStart proves that sessions begin at random with the rate, and that all else keeps its distance.
func TestStart(t *testing.T) {
	var trace strings.Builder
	for range 400 {
		trace.WriteString(`{"session_id":"` + strings.Repeat("x", trace.Len()%7+1) + string(rune('a'+trace.Len()%26)) + `","input_length":5,"output_length":50,"hash_ids":[9],"delay":1000}` + "\n")
	}
	before, err := ReadTrace(strings.NewReader(trace.String()), 400)
	if err != nil {
		t.Fatal(err)
	}
	began := 0
	for _, r := range before {
		if len(r.After) == 0 {
			began++
		}
	}
	all := Start(before, 2, 1)
	span := time.Duration(0)
	for _, r := range all {
		if len(r.After) == 0 {
			span = max(span, r.At)
		} else if b := all[r.After[0]-1]; r.At-b.At != 2*time.Second || b.Session != r.Session {
			t.Errorf("request %d comes %v after the one before", r.ID, r.At-b.At)
		}
	}
	if mean := span.Seconds() / float64(began); mean < 0.3 || mean > 0.7 {
		t.Errorf("%d sessions in %v", began, span)
	}
}
