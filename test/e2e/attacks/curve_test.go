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

	"github.com/select-service/select-service/internal/zmqsock/zmqtest"
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

func (p *tap) endpoint() string { return "tcp://" + p.ln.Addr().String() }

func (p *tap) has(texts ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range texts {
		if !strings.Contains(p.seen.String(), text) {
			return fmt.Errorf("%q did not go through", text)
		}
	}
	return nil
}

// hasAny returns nil once anything went through.
func (p *tap) hasAny() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen.Len() == 0 {
		return errors.New("nothing went through")
	}
	return nil
}

// conductorService is a row of GET /conductor/services.
type conductorService struct {
	State string `json:"state"`
	Last  uint64 `json:"last_sequence"`
}

func service(t *testing.T, s *e2e.Service) (one conductorService, err error) {
	var all struct {
		Services []conductorService `json:"services"`
	}
	if err := s.Do(t.Context(), http.MethodGet, "/conductor/services", nil, &all); err != nil {
		return one, err
	}
	if len(all.Services) != 1 {
		return one, fmt.Errorf("%d services", len(all.Services))
	}
	return all.Services[0], nil
}

// TestCurveOfEngines: with a server key nothing of an engine's events and replays goes in
// plain; without one all of it does, which proves that the test would see it.
func TestCurveOfEngines(t *testing.T) {
	const live, old = "live-payload-of-the-engine", "old-payload-of-the-engine"
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprint(secure), func(t *testing.T) {
			var options []zmqtest.Option
			registration := e2e.Object{
				"type": "vLLM", "modelname": "m", "instance_id": "i", "block_size": 16, "dp_rank": 0,
			}
			if secure {
				engine := newCurveKeys(t)
				options = append(options, zmqtest.CurveServer(engine.secret))
				registration["kv_events_server_key"] = engine.public
			}
			events := zmqtest.NewPublisher(t, "", options...)
			defer events.Close()
			replays := zmqtest.NewReplayServer(t, "", true, options...)
			defer replays.Close()
			for n := range uint64(5) {
				replays.Keep(zmqtest.Kept{Seq: n, Payload: []byte(old)})
			}
			eventTap, replayTap := newTap(t, strings.TrimPrefix(events.Endpoint, "tcp://")), newTap(t, strings.TrimPrefix(replays.Endpoint, "tcp://"))
			registration["endpoint"], registration["replay_endpoint"] = eventTap.endpoint(), replayTap.endpoint()

			s := e2e.Serve(t, nil)
			s.Must(t, http.StatusOK, "POST", "/conductor/register", registration, nil)
			events.Subscribers(1)
			events.Publish(0, []byte(live))
			events.Publish(5, []byte(live)) // a gap
			e2e.Eventually(t, "events and replay are applied", func() error {
				got, err := service(t, s)
				if err == nil && (got.Last != 5 || len(replays.Requests()) == 0) {
					err = fmt.Errorf("last number %d, asked for %v", got.Last, replays.Requests())
				}
				return err
			})
			if secure {
				eventTap.mustNotHave(t, live)
				replayTap.mustNotHave(t, old)
				return
			}
			e2e.Eventually(t, "plain events go through", func() error { return eventTap.has(live) })
			e2e.Eventually(t, "plain replays go through", func() error { return replayTap.has(old) })
		})
	}
}

// TestCurveKeysThatDoNotFit: a stream whose engine has another key, or none, stays
// unconnected; the log and the metrics say why.
func TestCurveKeysThatDoNotFit(t *testing.T) {
	engine, other := newCurveKeys(t), newCurveKeys(t)
	for name, tc := range map[string]struct {
		engine []zmqtest.Option
		reason string
	}{
		"another key": {[]zmqtest.Option{zmqtest.CurveServer(other.secret)}, "bad_key"},
		"plain":       {nil, "other_mechanism"},
	} {
		t.Run(name, func(t *testing.T) {
			events := zmqtest.NewPublisher(t, "", tc.engine...)
			defer events.Close()
			s := e2e.Serve(t, nil)
			s.Must(t, http.StatusOK, "POST", "/conductor/register", e2e.Object{
				"type": "vLLM", "modelname": "m", "instance_id": "i", "block_size": 16, "dp_rank": 0,
				"endpoint": events.Endpoint, "kv_events_server_key": engine.public,
			}, nil)
			e2e.Eventually(t, "the log says why", func() error { return logged(s.Process, tc.reason) })
			if got := s.Metric(t, fmt.Sprintf("select_service_stream_refused_total{reason=%q}", tc.reason)); got == 0 {
				t.Error("it is not counted")
			}
			if got, err := service(t, s); err != nil || got.State != "connecting" {
				t.Errorf("stream is %q, %v", got.State, err)
			}
		})
	}
}

// TestCurveOfBoundEndpoints: engines that connect need a key that is allowed.
func TestCurveOfBoundEndpoints(t *testing.T) {
	own, engine, other := newCurveKeys(t), newCurveKeys(t), newCurveKeys(t)
	allowed := filepath.Join(t.TempDir(), "allowed")
	writeFile(t, allowed, "# engines\n"+engine.public+"\n")
	s := e2e.Serve(t, nil, "--zmq-curve-secret-key-file", own.file, "--zmq-curve-publisher-keys-file", allowed)
	port := e2e.FreePort(t)
	s.Must(t, http.StatusOK, "POST", "/conductor/register", e2e.Object{
		"type": "vLLM", "modelname": "m", "instance_id": "i", "block_size": 16, "dp_rank": 0,
		"endpoint": fmt.Sprintf("tcp://*:%d", port),
	}, nil)
	to := fmt.Sprintf("tcp://127.0.0.1:%d", port)
	for _, options := range [][]zmqtest.Option{nil, {zmqtest.CurveClient(other.public, other.secret, own.public)}} {
		stranger := zmqtest.Connect(t, to, options...)
		defer stranger.Close()
	}
	e2e.Eventually(t, "the strangers are refused", func() error {
		if err := logged(s.Process, "other_mechanism"); err != nil {
			return err
		}
		return logged(s.Process, "is not allowed")
	})
	friend := zmqtest.Connect(t, to, zmqtest.CurveClient(engine.public, engine.secret, own.public))
	defer friend.Close()
	friend.Subscribers(1)
	friend.Publish(7, []byte("x"))
	e2e.Eventually(t, "the engine is heard", func() error {
		got, err := service(t, s)
		if err == nil && got.Last != 7 {
			err = fmt.Errorf("last number %d", got.Last)
		}
		return err
	})
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
				e2e.Eventually(t, "plain bookings go through", func() error { return taps[0].has(model) })
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
