package httpapi

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
)

// TestTargets: what a selection wants of its times means the same in both dialects, on both routes and in explanations. A
// number that is no target is refused with the numbers that are, and what is no number as any other member of a wrong type.
func TestTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		now := time.Now()
		ttft, deadline := "ttft_target_ms must be a number of milliseconds between 1 and 3600000", "deadline_ms must be a number of milliseconds between 1 and 86400000"
		for _, tc := range []struct {
			members string
			want    selection.SelectRequest
			status  int
			text    string
		}{
			{`"x":1`, selection.SelectRequest{}, 200, ""},
			{`"ttft_target_ms":null,"deadline_ms":null,"on_miss":null`, selection.SelectRequest{}, 200, ""},
			{`"ttft_target_ms":1`, selection.SelectRequest{TTFTTarget: time.Millisecond}, 200, ""},
			{`"ttft_target_ms":2.5,"on_miss":"place"`, selection.SelectRequest{TTFTTarget: 2500 * time.Microsecond}, 200, ""},
			{`"ttft_target_ms":3600000,"on_miss":"refuse"`, selection.SelectRequest{TTFTTarget: time.Hour, RefuseOnMiss: true}, 200, ""},
			{`"deadline_ms":86400000`, selection.SelectRequest{Deadline: now.Add(24 * time.Hour)}, 200, ""},
			{`"deadline_ms":1,"ttft_target_ms":1`, selection.SelectRequest{Deadline: now.Add(time.Millisecond), TTFTTarget: time.Millisecond}, 200, ""},
			{members: `"ttft_target_ms":0`, status: 400, text: ttft},
			{members: `"ttft_target_ms":-1`, status: 400, text: ttft},
			{members: `"ttft_target_ms":0.99`, status: 400, text: ttft},
			{members: `"ttft_target_ms":3600001`, status: 400, text: ttft},
			{members: `"ttft_target_ms":1e300`, status: 400, text: ttft},
			{members: `"ttft_target_ms":NaN`, status: 400, text: syntaxPrefix},
			{members: `"ttft_target_ms":"500"`, status: 422, text: shapePrefix + "ttft_target_ms: invalid type: string"},
			{members: `"deadline_ms":0`, status: 400, text: deadline},
			{members: `"deadline_ms":3155760000000`, status: 400, text: deadline}, // a century
			{members: `"deadline_ms":[]`, status: 422, text: shapePrefix + "deadline_ms: invalid type: "},
			{members: `"on_miss":"drop"`, status: 422, text: shapePrefix + "on_miss: "},
			{members: `"on_miss":true`, status: 422, text: shapePrefix + "on_miss: invalid type: boolean, expected a string"}, // as the members beside it
			{members: `"on_miss":1`, status: 422, text: shapePrefix + "on_miss: invalid type: "},
			{members: `"on_miss":{}`, status: 422, text: shapePrefix + "on_miss: invalid type: "},
		} {
			for _, s := range speakers(f) {
				for _, path := range []string{"/select", "/select_and_reserve", "/explain"} {
					var got selection.SelectRequest
					f.call = func() {
						got = f.selected
					}
					w := call(t, s, "POST", s.prefix+path, `{`+tc.members+`}`, nil)
					if w.Code != tc.status || tc.text != "" && !strings.HasPrefix(errorText(t, w), tc.text) {
						t.Errorf("%s %s %s: %d %s", s.name, path, tc.members, w.Code, w.Body)
					}
					if got.TTFTTarget != tc.want.TTFTTarget || !got.Deadline.Equal(tc.want.Deadline) || got.RefuseOnMiss != tc.want.RefuseOnMiss {
						t.Errorf("%s %s %s: %v, %v, %v", s.name, path, tc.members, got.TTFTTarget, got.Deadline, got.RefuseOnMiss)
					}
				}
			}
		}
	})
}

// TestTargetsIgnored: where targets have no effect, a number that is no target is no reason to refuse a request. It is counted as
// targets are. What is no number is refused as any other member of a wrong type.
func TestTargetsIgnored(t *testing.T) {
	f := &fake{ignoresTargets: true}
	for _, tc := range []struct {
		members string
		odd     bool
		status  int
	}{
		{`"ttft_target_ms":1`, false, 200},
		{`"ttft_target_ms":0`, true, 200},
		{`"ttft_target_ms":3600001,"deadline_ms":5,"on_miss":"refuse"`, true, 200},
		{`"deadline_ms":-1`, true, 200},
		{`"deadline_ms":"soon"`, false, 422},
	} {
		for _, s := range speakers(f) {
			for _, path := range []string{"/select", "/select_and_reserve", "/explain"} {
				f.selected = selection.SelectRequest{}
				w := call(t, s, "POST", s.prefix+path, `{`+tc.members+`}`, nil)
				if w.Code != tc.status || f.selected.OddTarget != tc.odd {
					t.Errorf("%s %s %s: %d %s, odd %t", s.name, path, tc.members, w.Code, w.Body, f.selected.OddTarget)
				}
			}
		}
	}
}

// TestDeadlineIsMonotonic: a deadline has the reading of the monotonic clock, which time.Time shows as m=, so that a wall clock that
// jumps makes nobody late.
func TestDeadlineIsMonotonic(t *testing.T) {
	f := &fake{}
	for _, s := range speakers(f) {
		w := call(t, s, "POST", s.prefix+"/select", `{"deadline_ms":9000}`, nil)
		if d := f.selected.Deadline; w.Code != 200 || !strings.Contains(d.String(), " m=") {
			t.Errorf("%s: %d, the deadline is %v, by the wall clock", s.name, w.Code, d)
		}
	}
}

// TestTargetMissed: a request that is refused for its target gets 429 in both dialects, with what is predicted, when to come
// again, and the reason in llm-d's header.
func TestTargetMissed(t *testing.T) {
	f := &fake{err: contract.NewTargetMissed(contract.TargetError{Predicted: 2812500 * time.Microsecond, Over: 1812500 * time.Microsecond})}
	for _, s := range speakers(f) {
		for _, path := range []string{"/select", "/select_and_reserve"} {
			w := call(t, s, "POST", s.prefix+path, `{"ttft_target_ms":1000,"on_miss":"refuse"}`, nil)
			want := `{"error":"no worker is predicted to hold the target of the request","reason":"rejected-saturated","predicted_ttft_ms":2812.5}`
			if w.Code != 429 || w.Body.String() != want {
				t.Errorf("%s %s: %d %s", s.name, path, w.Code, w.Body)
			}
			if h := w.Header(); h.Get("Retry-After") != "2" || h.Get("X-Llm-D-Request-Dropped-Reason") != "rejected-saturated" {
				t.Errorf("%s %s: %v", s.name, path, h)
			}
		}
	}
}
