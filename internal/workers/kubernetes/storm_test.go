package kubernetes_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/workers/kubernetes"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// between is what stands between discovery and an API server. Its function may answer a request
// itself; nil leaves it to the server.
type between struct {
	api *kubetest.Server

	mu     sync.Mutex // guards answer
	answer func(r *http.Request) (*http.Response, error)
}

func (b *between) set(answer func(r *http.Request) (*http.Response, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

// RoundTrip implements http.RoundTripper.
func (b *between) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	answer := b.answer
	b.mu.Unlock()
	if answer != nil {
		if resp, err := answer(r); resp != nil || err != nil {
			return resp, err
		}
	}
	return b.api.RoundTrip(r)
}

// startBetween is startVirtual with something between, which has an answer from the first request on.
func startBetween(t *testing.T, api *kubetest.Server, answer func(r *http.Request) (*http.Response, error)) (*between, *world) {
	t.Helper()
	b := &between{api: api, answer: answer}
	client, err := kubernetes.Connect(b)
	if err != nil {
		t.Fatal(err)
	}
	return b, startWith(t, api, client, pool())
}

func isPods(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/pods") }

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// stalled is a body that brings a text, as a whole or, with a pause, byte by byte, and has no end.
type stalled struct {
	ctx   context.Context //nolint:containedctx // of the request
	text  *bytes.Reader
	pause time.Duration
}

// Read implements io.Reader.
func (s *stalled) Read(p []byte) (int, error) {
	if s.pause > 0 {
		select {
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		case <-time.After(s.pause):
			return s.text.Read(p[:1])
		}
	}
	if s.text.Len() > 0 {
		return s.text.Read(p)
	}
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func stall(r *http.Request, status int, pause time.Duration) (*http.Response, error) {
	text := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[` + strings.Repeat(" ", 1<<10)
	return &http.Response{
		StatusCode: status, Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: -1,
		Body: io.NopCloser(&stalled{r.Context(), bytes.NewReader([]byte(text)), pause}), Request: r,
	}, nil
}

// TestStalledAnswers: an answer that comes in part, byte by byte, or not at all is given up after 30 s
// and asked for again, at the start and later; meanwhile the error says so, and no worker is lost.
func TestStalledAnswers(t *testing.T) {
	for name, answer := range map[string]func(r *http.Request) (*http.Response, error){
		"LIST that stalls": func(r *http.Request) (*http.Response, error) { return stall(r, http.StatusOK, 0) },
		"LIST that drips":  func(r *http.Request) (*http.Response, error) { return stall(r, http.StatusOK, time.Second) },
		"refusal that stalls": func(r *http.Request) (*http.Response, error) {
			return stall(r, http.StatusInternalServerError, 0)
		},
		"no answer": func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				withThreePods(api)
				b, w := startBetween(t, api, func(r *http.Request) (*http.Response, error) {
					if !isPods(r) || isWatch(r) {
						return nil, nil
					}
					return answer(r)
				})
				w.state(0, kubernetes.Unreachable) // within a minute
				if why := w.d.Status().Sources[0].Error; !strings.Contains(why, "30s") && !strings.Contains(why, "500") {
					t.Errorf("error %q", why)
				}
				b.set(nil)
				three := []string{"vllm-0:8000 schedulable", "vllm-1:8000 schedulable", "vllm-2:8000 schedulable"}
				w.has(three...)
				time.Sleep(time.Minute)
				// The next watches are refused in the same way, and so is the LIST that a version needs which
				// is not kept.
				b.set(func(r *http.Request) (*http.Response, error) {
					switch {
					case !isPods(r):
						return nil, nil
					case isWatch(r) && name != "no answer":
						return stall(r, http.StatusInternalServerError, 0)
					}
					return answer(r)
				})
				api.Compact()
				api.CutWatches()
				w.await("the error", func() bool { return w.d.Status().Sources[0].Error != "" })
				time.Sleep(10 * time.Minute)
				w.state(0, kubernetes.Unreachable)
				w.has(three...)
				api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
				b.set(nil)
				time.Sleep(75 * time.Second) // an answer that is still awaited, and the longest wait
				w.has(append(three, "vllm-3:8000 schedulable")...)
				w.lostNone()
			})
		})
	}
}

// TestStorms: whatever an API server does with LISTs and watches, it is asked for few of them: LISTs
// are at least 1 s apart, twice as far after each until a watch has lived for 30 s; watches 0.5 s.
func TestStorms(t *testing.T) {
	expired := kubetest.Object{"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
	pod := func() kubetest.Object {
		o := kubetest.Pod("llm", "vllm-0", "10.0.0.1")
		o["kind"], o["apiVersion"] = "Pod", "v1"
		return o
	}
	bookmark := func(w http.ResponseWriter) {
		o := pod()
		o["metadata"].(kubetest.Object)["resourceVersion"] = "1"
		kubetest.Event(w, "BOOKMARK", o)
	}
	for name, watch := range map[string]func(w http.ResponseWriter){
		"410 at once": func(w http.ResponseWriter) { kubetest.Event(w, "ERROR", expired) },
		"a bookmark, then 410": func(w http.ResponseWriter) {
			bookmark(w)
			kubetest.Event(w, "ERROR", expired)
		},
		"a status of 410":         func(w http.ResponseWriter) { kubetest.Fail(w, http.StatusGone, "Expired", "too old") },
		"an event, then no JSON":  func(w http.ResponseWriter) { kubetest.Event(w, "MODIFIED", pod()); _, _ = w.Write([]byte("<html>\n")) },
		"a bookmark, then an end": bookmark,
		"an end":                  func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) },
		"an event, then an end":   func(w http.ResponseWriter) { kubetest.Event(w, "MODIFIED", pod()) },
		"an unreadable object": func(w http.ResponseWriter) {
			kubetest.Event(w, "MODIFIED", kubetest.Object{"kind": "Pod", "apiVersion": "v1", "spec": "x"})
		},
		"a fault of the API server": func(w http.ResponseWriter) { kubetest.Fail(w, http.StatusInternalServerError, "InternalError", "oops") },
		"too many, come again in 0 s": func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "0")
			kubetest.Fail(w, http.StatusTooManyRequests, "TooManyRequests", "later")
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				withThreePods(api)
				api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
					if !isPods(r) || !isWatch(r) {
						return false
					}
					rw.Header().Set("Content-Type", "application/json")
					watch(rw)
					return true
				})
				w := startVirtual(t, api, nil, pool())
				w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
				time.Sleep(10 * time.Second)
				// LISTs at 0, 1, 3 and 7 s.
				if lists, watches := api.Seen("pods list"), api.Seen("pods watch"); lists > 5 || watches > 25 {
					t.Errorf("%d LISTs and %d watches in 10 s", lists, watches)
				}
				time.Sleep(time.Minute)
				before := api.Seen("pods list")
				time.Sleep(2 * time.Minute)
				if lists := api.Seen("pods list") - before; lists > 5 {
					t.Errorf("%d LISTs in two minutes, want one in 30 s", lists)
				}
				api.Answer(nil)
				api.Put("pods", kubetest.Pod("llm", "vllm-3", "10.0.0.4"))
				w.await("a fourth worker", func() bool { return w.catalog.CountSchedulable() == 4 })
				// After a watch that has lived, a version that is not kept costs no wait.
				time.Sleep(time.Minute)
				api.Compact()
				api.Put("pods", kubetest.Pod("llm", "vllm-4", "10.0.0.5"))
				api.Put("pods", kubetest.Pod("llm", "vllm-5", "10.0.0.6"))
				api.CutWatches()
				api.Compact()
				before = api.Seen("pods list")
				time.Sleep(time.Second)
				if n := w.catalog.CountSchedulable(); n != 6 {
					t.Errorf("%d workers after a second, %d LISTs", n, api.Seen("pods list")-before)
				}
				w.lostNone()
			})
		})
	}
}

// TestRefusedLists: an API server that refuses LISTs is asked for few of them, whatever it says, and
// what it has is known once it answers.
func TestRefusedLists(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		reason string
	}{
		"410": {http.StatusGone, "Expired"},
		"500": {http.StatusInternalServerError, "InternalError"},
		"429": {http.StatusTooManyRequests, "TooManyRequests"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, api *kubetest.Server) {
				withThreePods(api)
				api.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
					if !isPods(r) || isWatch(r) {
						return false
					}
					kubetest.Fail(rw, tt.status, tt.reason, "no")
					return true
				})
				w := startVirtual(t, api, nil, pool())
				time.Sleep(10 * time.Second)
				if lists := api.Seen("pods list"); lists < 3 || lists > 8 {
					t.Errorf("%d LISTs in 10 s", lists)
				}
				time.Sleep(2 * time.Minute)
				before := api.Seen("pods list")
				time.Sleep(2 * time.Minute)
				if lists := api.Seen("pods list") - before; lists < 2 || lists > 10 { // they are 15 s to 45 s apart, at random
					t.Errorf("%d LISTs in two minutes", lists)
				}
				api.Answer(nil)
				w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
			})
		})
	}
}

// TestRedirect: a redirect of the API server, or of what stands between, is not followed: the other
// host would have the token. The error names the host.
func TestRedirect(t *testing.T) {
	virtual(t, func(t *testing.T, api *kubetest.Server) {
		withThreePods(api)
		followed := make(chan string, 100)
		b, w := startBetween(t, api, func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "api.test" {
				followed <- r.URL.String()
			}
			return &http.Response{
				StatusCode: http.StatusTemporaryRedirect, Header: http.Header{"Location": {"http://evil.example/x"}}, Body: http.NoBody, Request: r,
			}, nil
		})
		w.await("the error", func() bool {
			return strings.Contains(w.d.Status().Sources[0].Error, "redirects to evil.example, which is not followed")
		})
		b.set(nil)
		w.await("three workers", func() bool { return w.catalog.CountSchedulable() == 3 })
		if len(followed) > 0 {
			t.Errorf("followed to %s", <-followed)
		}
	})
}
