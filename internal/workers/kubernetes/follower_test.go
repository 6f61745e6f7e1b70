package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// heardBy notes what a sink is told.
type heardBy struct{ told []string }

func (h *heardBy) replace(all []string, _ map[string]bool) {
	h.told = append(h.told, "="+strings.Join(all, ""))
}
func (h *heardBy) set(v string)    { h.told = append(h.told, "+"+v) }
func (h *heardBy) remove(v string) { h.told = append(h.told, "-"+v) }

// TestLateEvents proves that events that come twice, or after newer ones of their object, say
// nothing, whatever UID they have; a list is the truth (scenario 26).
func TestLateEvents(t *testing.T) {
	for name, tt := range map[string]struct{ events, want string }{
		"in order":             {"+a10 +a11 -a12 +a13", "+a10 +a11 -a12 +a13"},
		"twice":                {"+a10 +a10 -a11 -a11 +a12 +a12", "+a10 +a10 -a11 +a12 +a12"},
		"an older state":       {"+a12 +a10", "+a12"},
		"an older end":         {"+a9 -a10 +a12 -a10", "+a9 -a10 +a12"},
		"a state after an end": {"+a9 -a12 +a12 +a10", "+a9 -a12"},
		"of others":            {"+a12 +b10 -b11 +a11", "+a12 +b10 -b11"},
		"after a list":         {"+a10 =a12,b3 +a11 -b2 +b4", "+a10 =a12b3 +b4"},
		"an older list":        {"+a10 -b10 =a3,b3 +a4 +b4", "+a10 -b10 =a3b3 +a4 +b4"},
		"without versions":     {"+a +a10 +a -a", "+a +a10 +a -a"},
	} {
		t.Run(name, func(t *testing.T) {
			var heard heardBy
			f := (&follower[string]{resource: "pods", sink: &heard, counts: newCounters(), changed: func() {}}).start(time.Now())
			object := func(text string) *object[string] {
				return &object[string]{value: text, ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: text[:1], ResourceVersion: text[1:]}}
			}
			s := (*store[string])(f)
			for _, e := range strings.Fields(tt.events) {
				var err error
				switch e[0] {
				case '+':
					err = s.Update(object(e[1:]))
				case '-':
					err = s.Delete(object(e[1:]))
				case '=':
					var all []any
					for text := range strings.SplitSeq(e[1:], ",") {
						all = append(all, object(text))
					}
					err = s.Replace(all, "")
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if want := strings.Fields(tt.want); !slices.Equal(heard.told, want) {
				t.Errorf("told %q, want %q", heard.told, want)
			}
		})
	}
}

// TestExpired proves that objects are listed at once where a watch cannot go on from its version, also
// after its end; TestStorms proves that a server that says so again and again is not asked at once.
func TestExpired(t *testing.T) {
	f := (&follower[string]{resource: "pods", changed: func() {}}).start(time.Now())
	f.failed(errEnded, broken)
	if list := f.failed(errList, expired); !list || time.Until(f.due) > 0 {
		t.Errorf("list %t, after %v", list, time.Until(f.due))
	}
}

// TestLateEventsAreBounded proves that what is remembered of deleted objects does not grow.
func TestLateEventsAreBounded(t *testing.T) {
	f := (&follower[string]{sink: new(heardBy)}).start(time.Now())
	for i := range 3 * maxGone {
		f.late(&metav1.ObjectMeta{Name: fmt.Sprint(i), ResourceVersion: fmt.Sprint(i + 1)}, true)
	}
	if n := len(f.versions); n > maxGone {
		t.Errorf("%d versions", n)
	}
}
