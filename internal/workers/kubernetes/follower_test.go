package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// sinkOf notes what a sink is told.
func sinkOf(told *[]string) sink[string] {
	note := func(text string) { *told = append(*told, text) }
	return sink[string]{
		replace: func(all []string, _ map[string]bool) { note("=" + strings.Join(all, "")) },
		set:     func(v string) { note("+" + v) },
		remove:  func(v string) { note("-" + v) },
	}
}

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
			var told []string
			f := (&follower[string]{resource: "pods", sink: sinkOf(&told), counts: newCounters(), changed: func() {}}).start(time.Now())
			read := func(text string) object[string] {
				return newObject(&metav1.ObjectMeta{Namespace: "llm", Name: text[:1], ResourceVersion: text[1:]}, 0, text)
			}
			for _, e := range strings.Fields(tt.events) {
				o := read(e[1:])
				switch e[0] {
				case '+':
					f.change(watch.Modified, &o)
				case '-':
					f.change(watch.Deleted, &o)
				case '=':
					var all []object[string]
					for text := range strings.SplitSeq(e[1:], ",") {
						all = append(all, read(text))
					}
					f.replace(all)
				}
			}
			if want := strings.Fields(tt.want); !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
		})
	}
}

// TestTooLarge proves that the state of an object that is too large does not count, and that its end does.
func TestTooLarge(t *testing.T) {
	var told []string
	f := (&follower[string]{resource: "pods", sink: sinkOf(&told), counts: newCounters(), changed: func() {}}).start(time.Now())
	var kept map[string]bool
	f.sink.replace = func(all []string, keep map[string]bool) { told, kept = append(told, "="+strings.Join(all, "")), keep }
	read := func(version string, size int) *object[string] {
		o := newObject(&metav1.ObjectMeta{Namespace: "llm", Name: "a", ResourceVersion: version}, size, "a"+version)
		return &o
	}
	f.change(watch.Added, read("10", 1))
	f.change(watch.Modified, read("11", maxEvent+1))
	f.replace([]object[string]{*read("12", maxEvent+1)})
	f.change(watch.Deleted, read("13", maxEvent+1))
	if want := []string{"+a10", "=", "-a13"}; !slices.Equal(told, want) || !kept["llm/a"] || f.counts.Read().Unread["pods"] != 2 {
		t.Errorf("told %q, want %q; kept %v, %d not read", told, want, kept, f.counts.Read().Unread["pods"])
	}
}

// TestExpired proves that objects are listed at once where a watch cannot go on from its version, also
// after its end; TestStorms proves that a server that says so again and again is not asked at once.
func TestExpired(t *testing.T) {
	f := (&follower[string]{resource: "pods", changed: func() {}}).start(time.Now())
	f.failed(errEnded, broken)
	if list := f.failed(apierrors.NewResourceExpired("too old"), expired); !list || time.Until(f.due) > 0 {
		t.Errorf("list %t, after %v", list, time.Until(f.due))
	}
}

// TestLateEventsAreBounded proves that what is remembered of deleted objects does not grow.
func TestLateEventsAreBounded(t *testing.T) {
	f := new(follower[string]).start(time.Now())
	for i := range 3 * maxGone {
		f.late(fmt.Sprint(i), uint64(i+1), true)
	}
	if n := len(f.versions); n > maxGone {
		t.Errorf("%d versions", n)
	}
}
