package attacks

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/e2e"
)

// curveKeys is a key pair of "select-service curve new" and its file.
type curveKeys struct{ file, public, secret string }

func newCurveKeys(t *testing.T) (k curveKeys) {
	t.Helper()
	text, err := exec.Command(e2e.Binary(t), "curve", "new").Output()
	if err != nil {
		t.Fatal(err)
	}
	key := func(name string) string {
		found := regexp.MustCompile(name + ` = "([^"]{40})"`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("no %s in %s", name, text)
		}
		return string(found[1])
	}
	k = curveKeys{filepath.Join(t.TempDir(), "key"), key("public-key"), key("secret-key")}
	writeFile(t, k.file, string(text))
	return k
}

func (ta *tap) endpoint() string { return "tcp://" + ta.ln.Addr().String() }

func (ta *tap) has(texts ...string) error {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	for _, text := range texts {
		if !strings.Contains(ta.seen.String(), text) {
			return fmt.Errorf("%q did not go through", text)
		}
	}
	return nil
}

// hasAny returns nil once anything went through.
func (ta *tap) hasAny() error {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	if ta.seen.Len() == 0 {
		return errors.New("nothing went through")
	}
	return nil
}

// TestCurveOfReplicas: with the key of the replicas their bookings are not on the wire,
// and who has not got the key hears nothing.
func TestCurveOfReplicas(t *testing.T) {
	keys := newCurveKeys(t)
	const model, id = "model-on-the-wire", "reservation-on-the-wire"
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprint(secure), func(t *testing.T) {
			var taps [2]*tap
			var ports [2]string
			for i := range ports {
				address := fmt.Sprintf("127.0.0.1:%d", e2e.FreePort(t))
				_, ports[i], _ = net.SplitHostPort(address)
				taps[i] = newTap(t, address)
			}
			var replicas [2]*e2e.Service
			for i := range replicas {
				args := []string{
					"--use-kv-events=false", "--replica-sync-port", ports[i], "--replica-sync-peers", taps[1-i].endpoint(),
				}
				if secure {
					args = append(args, "--zmq-curve-replica-key-file", keys.file)
				}
				replicas[i] = e2e.Serve(t, nil, args...)
				replicas[i].Must(t, http.StatusCreated, "POST", "/workers", e2e.Object{
					"worker_id": 1, "model_name": model, "endpoint": "http://w:1", "block_size": 16,
				}, nil)
			}
			replicas[0].Must(t, http.StatusCreated, "POST", "/reservations", e2e.Object{
				"reservation_id": id, "model_name": model, "worker_id": 1, "dp_rank": 0,
				"token_ids": make([]int, 64), "effective_prefill_tokens": 64,
			}, nil)
			e2e.Eventually(t, "the other replica has the booking", func() error {
				loads, err := replicas[1].Loads(t.Context())
				if err == nil && (len(loads) != 1 || loads[0].Loads[0].Requests != 1) {
					err = fmt.Errorf("loads %+v", loads)
				}
				return err
			})
			if !secure {
				n := 0
				e2e.Eventually(t, "plain bookings go through", func() error { // the first may have come in a snapshot
					n++
					replicas[0].Must(t, http.StatusCreated, "POST", "/reservations", e2e.Object{
						"reservation_id": fmt.Sprint(id, n), "model_name": model, "worker_id": 1, "token_ids": make([]int, 64),
					}, nil)
					return taps[0].has(model)
				})
				return
			}
			for _, p := range taps {
				e2e.Eventually(t, "bytes go through", p.hasAny) // the booking may have come in a snapshot
				p.mustNotHave(t, model, id)
			}
			for _, s := range replicas {
				e2e.Eventually(t, "the log names the keys in use", func() error { return logged(s.Process, `"replicas":true`) })
				if out := s.Output(); strings.Contains(out, keys.secret) {
					t.Errorf("log: %.500s", out)
				}
			}
			// A subscriber in plain is refused.
			attack(t, "127.0.0.1:"+ports[0], zmtpGreeting(), zmtpReady("SUB"), zmtpFrame(0, []byte{1}))
			e2e.Eventually(t, "it is refused", func() error { return logged(replicas[0].Process, "other_mechanism") })
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
