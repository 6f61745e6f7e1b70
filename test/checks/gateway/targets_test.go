package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// wantHeaders are those by which a request says what it wants of its times.
var wantHeaders = []string{"X-Llm-D-Slo-Ttft-Ms", "X-Slo-Ttft-Ms", "X-Select-Deadline-Ms", "X-Select-On-Miss"}

// targets: once 200 first tokens were observed, and 64 probes have shown nothing else, a request whose target or deadline no engine is predicted to hold is refused with
// what is predicted, when to come again, and llm-d's reason; or it is placed. Engines do not get the headers.
func targets(t *testing.T) {
	b := lay(t, setup{})
	const prompt = 1500 // tokens: 15 ms
	asked := uint32(0)
	ask := func() object {
		asked++
		return chat(words(1000+asked, prompt), streamed, object{"max_tokens": 100}) // a second, so that a machine that stalls does not show the first and the last token at once: from such answers nothing is learned
	}
	learned := func() error {
		var all []struct {
			Learned *struct {
				Samples     int `json:"samples"`
				Calibration struct {
					Samples int `json:"samples"`
				} `json:"calibration"`
				Rails []struct {
					Name    string `json:"name"`
					Engaged bool   `json:"engaged"`
				} `json:"guard_rails"`
			} `json:"learned"`
		}
		b.picker.Must(t, http.StatusOK, http.MethodGet, "/policies", nil, &all)
		if len(all) != 1 || all[0].Learned == nil {
			t.Fatalf("no learned prefills in %+v", all)
		}
		l := all[0].Learned
		if l.Samples < 200 || l.Calibration.Samples < 100 {
			return fmt.Errorf("%d samples, %d of them compared with a prediction", l.Samples, l.Calibration.Samples)
		}
		for _, r := range l.Rails {
			if r.Engaged { // on a busy machine, for as long as there are few reports in time: nothing is refused
				return fmt.Errorf("the guard rail %s is engaged", r.Name)
			}
		}
		return nil
	}
	e2e.Eventually(t, "200 first tokens are learned from", func() error {
		var all sync.WaitGroup
		for range 40 {
			body := ask()
			all.Go(func() {
				if a, err := b.send(t.Context(), http.MethodPost, chats, body); err != nil || a.status != http.StatusOK {
					t.Errorf("%v, %v", a, err)
				}
			})
		}
		all.Wait()
		return learned()
	})
	late := func(body object, header string) (answered, error) {
		return b.send(t.Context(), http.MethodPost, chats, body, header, "1", "x-select-on-miss", "refuse")
	}
	e2e.Eventually(t, "first turns that come late have used up their credit", func() error {
		var all sync.WaitGroup
		for range 16 {
			body := ask()
			all.Go(func() { _, _ = late(body, "x-llm-d-slo-ttft-ms") })
			time.Sleep(30 * time.Millisecond) // those for which others are computed first are refused in any case
		}
		all.Wait()
		if a, err := late(ask(), "x-llm-d-slo-ttft-ms"); err != nil || a.status != http.StatusTooManyRequests {
			return fmt.Errorf("%d, %w", a.status, err)
		}
		return nil
	})
	for _, header := range []string{"x-llm-d-slo-ttft-ms", "x-slo-ttft-ms", "x-select-deadline-ms"} {
		var a answered
		served := 0
		e2e.Eventually(t, "a request is refused for its "+header, func() (err error) { // no guard rail has been engaged again
			if a, err = late(ask(), header); err == nil && a.status == http.StatusOK {
				if err = learned(); err == nil { // a guard rail may have ended meanwhile, or it was a probe
					served++
					err = errors.New("it was served")
				}
			}
			if served > 5 {
				t.Fatalf("%s: %d requests were served that would come late", header, served)
			}
			return err
		})
		if a.status != http.StatusTooManyRequests {
			t.Errorf("%s: %v", header, a)
		}
		code, message := refusal(t, a)
		if code != "target_missed" || !strings.Contains(message, "predicted_ttft_ms: ") || strings.Contains(message, "predicted_ttft_ms: 0)") {
			t.Errorf("%s: refused with %s, %q", header, code, message)
		}
		if after, reason := a.header.Get("Retry-After"), a.header.Get("X-Llm-D-Request-Dropped-Reason"); after != "1" || reason != "rejected-saturated" {
			t.Errorf("%s: refused for the reason %q, to come again after %q", header, reason, after)
		}
	}
	for _, e := range b.engines {
		e.takeSeen()
	}
	b.post(http.StatusOK, chats, ask(), "x-llm-d-slo-ttft-ms", "1")
	b.post(http.StatusOK, chats, ask(), "x-slo-ttft-ms", "600000", "x-select-deadline-ms", "86400000", "x-select-on-miss", "refuse")
	n := 0
	for _, e := range b.engines {
		for _, s := range e.takeSeen() {
			n++
			for _, name := range wantHeaders {
				if s.header.Get(name) != "" {
					t.Errorf("an engine has got %s", name)
				}
			}
		}
	}
	if n != 2 {
		t.Errorf("%d requests have reached engines, want 2", n)
	}
	b.idle()
}
