package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

// step is one request and what must come back. A body that ends in * stands for
// any tail.
type step struct {
	method, target, body string
	status               int
	want                 string
}

func play(t *testing.T, h http.Handler, steps []step) {
	t.Helper()
	for _, s := range steps {
		w := call(t, h, s.method, s.target, s.body, nil)
		got := w.Body.String()
		start, open := strings.CutSuffix(s.want, "*")
		if w.Code != s.status || got != s.want && (!open || !strings.HasPrefix(got, start)) {
			t.Errorf("%s %s %s: %d %s, want %d %s", s.method, s.target, s.body, w.Code, got, s.status, s.want)
		}
		if w.Header().Get("Retry-After") != "" {
			t.Errorf("%s %s %s has a Retry-After header", s.method, s.target, s.body)
		}
		if w.Code >= 400 {
			errorText(t, w) // exactly one member
		}
	}
}

// TestBusyThreshold plays the route against a real service: what is set, read
// and unset in turn, and every fault in between, which changes nothing.
func TestBusyThreshold(t *testing.T) {
	tokens := uint64(7)
	svc := node.New(node.Config{Threads: 1, Selection: selection.Config{Overload: overload.Thresholds{PrefillTokens: &tokens}}}, nil, zerolog.Nop())
	h := New(svc.UseCases, svc.Conductor(), Options{Log: zerolog.Nop(), RetryAfter: time.Second})
	const (
		path    = "/busy_threshold"
		nothing = `"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":null}`
		flags   = `"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":7,"active_prefill_tokens_threshold_frac":null}`
		unknown = `{"error":"Model 'nobody' not found. Thresholds can only be set for discovered models."}`
		names   = "active_decode_blocks_threshold, active_prefill_tokens_threshold, active_prefill_tokens_threshold_frac"
	)
	unknownField := func(name string) string {
		return `{"error":"` + queryPrefix + "unknown field `" + name + "`, expected `model` or `threshold`\"}"
	}
	shape := func(what string) string { return `{"error":"` + shapePrefix + what }
	play(t, h, []step{
		{"GET", path, "", 200, `{"thresholds":[]}`},
		{"POST", path, `{"model":"b"}`, 200, `{"model":"b",` + nothing},
	})
	for i, scope := range []catalog.Scope{{Model: "b", Tenant: "t"}, {Model: "b", Tenant: "u"}, {Model: `a"/`, Tenant: "t"}} {
		if _, err := svc.UseCases.PutWorker(catalog.Record{ID: uint64(i), Scope: scope}); err != nil { // incomplete ones count (decision B3)
			t.Fatal(err)
		}
	}
	play(t, h, []step{
		{"GET", path, "", 200, `{"thresholds":[{"model":"a\"/",` + flags + `,{"model":"b",` + flags + `]}`},
		{"HEAD", path, "", 200, "*"},

		// What is given is set, the others stay.
		{"POST", path, `{"model":"b"}`, 200, `{"model":"b",` + flags},
		{"POST", path, `{"model":"b","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":10000,"x":[]}`, 200, `{"model":"b","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":10000,"active_prefill_tokens_threshold_frac":null}`},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold_frac":1.5}`, 200, `{"model":"b","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":10000,"active_prefill_tokens_threshold_frac":1.5}`},
		{"POST", path, `{"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":null,"model":"b"}`, 200, `{"model":"b","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":10000,"active_prefill_tokens_threshold_frac":1.5}`},
		{"POST", path, `{"model":"b","active_decode_blocks_threshold":0,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":0.0}`, 200, `{"model":"b","active_decode_blocks_threshold":0.0,"active_prefill_tokens_threshold":10000,"active_prefill_tokens_threshold_frac":0.0}`},
		{"POST", path, `{"model":"b","active_decode_blocks_threshold":1,"active_prefill_tokens_threshold":18446744073709551615,"active_prefill_tokens_threshold_frac":1e300}`, 200, `{"model":"b","active_decode_blocks_threshold":1.0,"active_prefill_tokens_threshold":18446744073709551615,"active_prefill_tokens_threshold_frac":1e+300}`},

		// Ranges, before the model is looked up.
		{"POST", path, `{"model":"b","active_decode_blocks_threshold":1.01}`, 400, `{"error":"active_decode_blocks_threshold must be between 0.0 and 1.0, got 1.01"}`},
		{"POST", path, `{"model":"nobody","active_decode_blocks_threshold":-0.1}`, 400, `{"error":"active_decode_blocks_threshold must be between 0.0 and 1.0, got -0.1"}`},
		{"POST", path, `{"model":"nobody","active_prefill_tokens_threshold_frac":-1.5}`, 400, `{"error":"active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got -1.5"}`},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold":1,"active_decode_blocks_threshold":2.5}`, 400, `{"error":"active_decode_blocks_threshold must be*`},
		{"POST", path, `{"model":"nobody","active_prefill_tokens_threshold":0}`, 404, unknown},
		{"POST", path, `{"model":"nobody","active_prefill_tokens_threshold":null}`, 200, `{"model":"nobody",` + nothing},
		{"POST", path, `{"model":""}`, 200, `{"model":"",` + nothing},

		// Shapes.
		{"POST", path, `{}`, 422, shape("missing field `model`*")},
		{"POST", path, `{"active_decode_blocks_threshold":0.5}`, 422, shape("missing field `model`*")},
		{"POST", path, `{"model":null}`, 422, shape("model: *")},
		{"POST", path, `{"model":7}`, 422, shape("model: *")},
		{"POST", path, `{"model":"b","model":"b"}`, 422, shape("*")},
		{"POST", path, `{"model":"b","active_decode_blocks_threshold":"x"}`, 422, shape("active_decode_blocks_threshold: *")},
		{"POST", path, `{"model":"b","active_decode_blocks_threshold":1e999}`, 400, `{"error":"` + syntaxPrefix + "active_decode_blocks_threshold: number out of range*"},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold_frac":-1e999}`, 400, `{"error":"` + syntaxPrefix + "active_prefill_tokens_threshold_frac: number out of range*"},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold":-1}`, 422, shape("active_prefill_tokens_threshold: integer out of range*")},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold":18446744073709551616}`, 422, shape("active_prefill_tokens_threshold: integer out of range*")},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold":1.5}`, 422, shape("active_prefill_tokens_threshold: *")},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold":1.0}`, 422, shape("active_prefill_tokens_threshold: *")},
		{"POST", path, `{"model":"b","active_prefill_tokens_threshold":true}`, 422, shape("active_prefill_tokens_threshold: *")},
		{"POST", path, `[{"model":"b"}]`, 422, shape("*")},
		{"POST", path, `{"model":"b","active_decode_blocks_threshold":NaN}`, 400, `{"error":"` + syntaxPrefix + "*"},
		{"POST", path, `{"model":"b"`, 400, `{"error":"` + syntaxPrefix + "*"},
		{"POST", path, ``, 400, `{"error":"` + syntaxPrefix + "*"},
		{"POST", path, `{"model":"b"} x`, 400, `{"error":"` + syntaxPrefix + "*"},
		{"POST", path, `{"model":"` + strings.Repeat("b", maxBody) + `"}`, 413, `{"error":"` + errBodyTooLarge.text + `"}`},
		{"PUT", path, `{}`, 405, `{"error":"method not allowed"}`},
		{"PATCH", path, `{}`, 405, `{"error":"method not allowed"}`},
		{"GET", path + "/", "", 404, `{"error":"route not found"}`},
		{"GET", "/slots" + path, "", 404, `{"error":"route not found"}`},

		// None of that changed anything, nor did it touch the other model.
		{"GET", path, "", 200, `{"thresholds":[{"model":"a\"/",` + flags + `,{"model":"b","active_decode_blocks_threshold":1.0,"active_prefill_tokens_threshold":18446744073709551615,"active_prefill_tokens_threshold_frac":1e+300}]}`},

		// Unset is unset: the flag's value does not come back (decision B1).
		{"DELETE", path, "", 400, `{"error":"` + errNoModel.text + `"}`},
		{"DELETE", path + "?threshold=active_prefill_tokens_threshold", "", 400, `{"error":"` + errNoModel.text + `"}`},
		{"DELETE", path + "?model=b&model=b", "", 400, `{"error":"` + queryPrefix + "duplicate field `model`\"}"},
		{"DELETE", path + "?model=b&threshold=a&threshold=a", "", 400, `{"error":"` + queryPrefix + "duplicate field `threshold`\"}"},
		{"DELETE", path + "?model=b&threshold=", "", 400, `{"error":"threshold must be one of ` + names + `"}`},
		{"DELETE", path + "?model=nobody&threshold=decode", "", 400, `{"error":"threshold must be one of ` + names + `"}`},
		{"DELETE", path + "?model=b&tresh=active_prefill_tokens_threshold", "", 400, unknownField("tresh")},
		{"DELETE", path + "?Threshold=active_prefill_tokens_threshold&model=b&x", "", 400, unknownField("Threshold")},
		{"DELETE", path + "?model=b&=", "", 400, unknownField("")},
		{"DELETE", path + "?x=1&model=b&model=b", "", 400, `{"error":"` + queryPrefix + "duplicate field `model`\"}"},
		{"DELETE", path + "?model=nobody", "", 404, unknown},
		{"DELETE", path + "?model=nobody&threshold=active_prefill_tokens_threshold", "", 404, unknown},
		{"DELETE", path + "?model=b&threshold=active_prefill_tokens_threshold", "any body", 200, `{"model":"b","active_decode_blocks_threshold":1.0,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":1e+300}`},
		{"DELETE", path + "?model=b&threshold=active_decode_blocks_threshold", "", 200, `{"model":"b","active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":1e+300}`},
		{"DELETE", path + "?model=b&threshold=active_prefill_tokens_threshold_frac", "", 200, `{"model":"b",` + nothing},
		{"DELETE", path + "?model=a%22%2F", "", 200, `{"model":"a\"/",` + nothing},
		{"DELETE", path + "?model=a%22/", "", 200, `{"model":"a\"/",` + nothing},
		{"GET", path, "", 200, `{"thresholds":[{"model":"a\"/",` + nothing + `,{"model":"b",` + nothing + `]}`},
	})
	w := call(t, h, "POST", path, `{"model":"b"}`, http.Header{"Content-Type": {"text/plain"}})
	if w.Code != 415 || errorText(t, w) != errContentType.text {
		t.Errorf("as text: %d %s", w.Code, w.Body)
	}
}

// TestBusyThresholdArguments: the service gets what the request says, and what it
// refuses becomes an answer.
func TestBusyThresholdArguments(t *testing.T) {
	f := &fake{}
	h := newHandler(f)
	call(t, h, "POST", "/busy_threshold", `{"model":"m","active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":3,"active_prefill_tokens_threshold_frac":2}`, nil)
	equal(t, "model", f.busyModel, "m")
	equal(t, "all", f.busySet, overload.Thresholds{DecodeBlocks: ptr(0.5), PrefillTokens: ptr[uint64](3), PrefillFraction: ptr(2.0)})
	call(t, h, "POST", "/busy_threshold", `{"model":""}`, nil)
	equal(t, "model", f.busyModel, "")
	equal(t, "none", f.busySet, overload.Thresholds{})
	call(t, h, "DELETE", "/busy_threshold?model=a+b&threshold=x%20y", "", nil)
	equal(t, "cleared", []*string{&f.busyModel, f.which}, []*string{ptr("a b"), ptr("x y")})
	call(t, h, "DELETE", "/busy_threshold?model=", "", nil)
	equal(t, "cleared", []*string{&f.busyModel, f.which}, []*string{ptr(""), nil})

	f.err = &contract.Error{Kind: contract.TooMany, Text: "too many"}
	play(t, h, []step{
		{"POST", "/busy_threshold", `{"model":"m","active_prefill_tokens_threshold":3}`, 429, `{"error":"too many"}`},
		{"DELETE", "/busy_threshold?model=m", "", 429, `{"error":"too many"}`},
	})
}

// TestOverloadAnswer: a refusal by overload has its own members, and a
// Retry-After header if one is configured; no other refusal has either.
func TestOverloadAnswer(t *testing.T) {
	const busy = "Service temporarily unavailable: "
	all := &contract.Error{Kind: contract.Overloaded, Text: "all eligible workers are overloaded", Message: busy + "All workers are busy, please retry later"}
	pinned := &contract.Error{Kind: contract.Overloaded, Text: "pinned worker 7 is overloaded", Message: busy + "Selected worker is overloaded, please retry later"}
	for _, tc := range []struct {
		golden string
		err    error
		shed   bool
	}{
		{"overloaded", all, true},
		{"overloaded_pinned", pinned, true},
		{"unavailable", &contract.Error{Kind: contract.Unavailable, Text: "no endpoints available to route work"}, false},
		{"queue_full", &contract.Error{Kind: contract.QueueRejected, Text: "limit reached", Details: map[string]any{"current": 1, "limit": 1}}, false},
	} {
		f := &fake{err: tc.err}
		for wait, header := range map[time.Duration]string{0: "", 1500 * time.Millisecond: "2", time.Minute: "60", 24 * time.Hour: "86400"} {
			h := New(f, f.conductor(), Options{Log: zerolog.Nop(), RetryAfter: wait})
			for _, path := range []string{"/select", "/select_and_reserve"} {
				w := call(t, h, "POST", path, "{}", nil)
				golden(t, tc.golden, w)
				if w.Code != 503 || w.Header().Get("Content-Type") != "application/json" {
					t.Errorf("%s of %s: %d %v", tc.golden, path, w.Code, w.Header())
				}
				want := []string(nil)
				if tc.shed && header != "" {
					want = []string{header}
				}
				equal(t, tc.golden, w.Header()["Retry-After"], want)
			}
		}
	}
	// Other answers of a listener that has the option, 503 or not.
	h := New(&fake{}, (&fake{}).conductor(), Options{Log: zerolog.Nop(), RetryAfter: time.Minute})
	for _, target := range []string{"GET /ready", "GET /health", "GET /nope", "POST /select"} {
		method, path, _ := strings.Cut(target, " ")
		if w := call(t, h, method, path, "{}", nil); w.Header()["Retry-After"] != nil {
			t.Errorf("%s: %d with Retry-After", target, w.Code)
		}
	}
}
