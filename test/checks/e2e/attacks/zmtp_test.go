package attacks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// Raw ZMTP 3.0, as an attacker writes it.

// handshake is everything that a peer of the mechanism NULL says before its first
// message.
func handshake(kind string) []byte {
	greeting := append([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL"), make([]byte, 48)...)
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(kind))) + kind
	return append(append(greeting, 4, byte(len(ready))), ready...)
}

// frame is a frame of a message; more says that others follow.
func frame(body []byte, more bool) []byte {
	flags := byte(2)
	if more {
		flags |= 1
	}
	return append(binary.BigEndian.AppendUint64([]byte{flags}, uint64(len(body))), body...)
}

func rawMessage(frames ...[]byte) (wire []byte) {
	for i, f := range frames {
		wire = append(wire, frame(f, i < len(frames)-1)...)
	}
	return wire
}

// hostile is an engine that says hello and then attacks on each of its connections,
// until the volume or the number of connections is used up.
type hostile struct {
	hello  []byte
	attack func(w io.Writer) error // until an error
	volume atomic.Int64            // bytes still to be sent
	rounds atomic.Int64            // connections still to be used
	used   chan struct{}           // closed when either is used up
	once   sync.Once
}

func newHostile(kind string, volume, rounds int64, attack func(w io.Writer) error) *hostile {
	a := &hostile{hello: handshake(kind), attack: attack, used: make(chan struct{})}
	a.volume.Store(volume)
	a.rounds.Store(rounds)
	return a
}

// play attacks on one connection.
func (h *hostile) play(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	if _, err := conn.Write(h.hello); err == nil {
		_ = h.attack(counted{conn, h})
	}
	if h.rounds.Add(-1) <= 0 {
		h.once.Do(func() { close(h.used) })
	}
}

// counted is a connection of a hostile engine, which counts what is sent on it.
type counted struct {
	net.Conn
	a *hostile
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.a.volume.Add(-int64(n)) <= 0 {
		c.a.once.Do(func() { close(c.a.used) })
		return n, io.ErrShortWrite
	}
	return n, err
}

// listen attacks whoever connects, and returns the endpoint.
func (h *hostile) listen(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			stop := t.Context()
			conns.Go(func() {
				go func() { <-stop.Done(); _ = conn.Close() }()
				h.play(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		conns.Wait()
	})
	return "tcp://" + listener.Addr().String()
}

// dial attacks a bound socket again and again, from several connections.
func (h *hostile) dial(t *testing.T, port, connections int) {
	t.Helper()
	var conns sync.WaitGroup
	stop := t.Context()
	for range connections {
		conns.Go(func() {
			for stop.Err() == nil {
				conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
				if err == nil {
					go func() { <-stop.Done(); _ = conn.Close() }()
					h.play(conn)
				}
				select {
				case <-h.used:
					return
				case <-stop.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	t.Cleanup(conns.Wait)
}

// stored is the message of an engine that has cached blocks of these tokens.
func stored(t *testing.T, blocks int, name uint64, tokens ...uint32) []byte {
	t.Helper()
	names, all := make([]uint64, blocks), make([]uint32, 0, blocks*len(tokens))
	for i := range names {
		names[i] = name + uint64(i)
		all = append(all, tokens...)
	}
	payload, err := msgpack.Marshal([]any{1.5, []any{[]any{"BlockStored", names, nil, all, len(tokens), nil}}, 0})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// engines is a service with engines, honest ones and others.
type engines struct {
	*e2e.Service
	honest *zmqtest.Publisher
	events uint64 // of the honest one so far
}

func serveEngines(t *testing.T, args ...string) *engines {
	t.Helper()
	// By the environment: a program from before these options ignores them.
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_MAX_MEMORY": "512MiB"}, args...)
	e := &engines{Service: s, honest: zmqtest.NewPublisher(t, "")}
	t.Cleanup(e.honest.Close)
	e.register(t, 1, e.honest.Endpoint, "")
	e.honest.Subscribers(1)
	return e
}

// register registers a worker with one rank, and returns why it is not schedulable.
func (e *engines) register(t *testing.T, id int, events, replay string) string {
	t.Helper()
	worker := e2e.Object{
		"worker_id": id, "model_name": "m" + strconv.Itoa(id), "endpoint": fmt.Sprintf("http://w%d:8000", id), "block_size": 4,
		"max_num_batched_tokens": 1024, "kv_events_endpoint": events,
	}
	if replay != "" {
		worker["replay_endpoint"] = replay
	}
	var record struct {
		Reasons []string `json:"not_schedulable_reasons"`
	}
	e.Must(t, http.StatusCreated, "POST", "/workers", worker, &record)
	return strings.Join(record.Reasons, "; ")
}

// hears sends an event of the honest engine and waits until it counts.
func (e *engines) hears(t *testing.T) {
	t.Helper()
	token := 1000 + uint32(e.events)
	e.honest.Publish(e.events, stored(t, 1, 900_000+e.events, token, token, token, token))
	e.events++
	begin := time.Now()
	e2e.Eventually(t, "the honest engine's event counts", func() error {
		var scores struct {
			Workers []struct {
				Device int `json:"device_blocks"`
			} `json:"workers"`
		}
		if err := e.Do(t.Context(), "POST", "/overlap_scores", e2e.Object{"model_name": "m1", "token_ids": []uint32{token, token, token, token}}, &scores); err != nil {
			return err
		}
		if len(scores.Workers) != 1 || scores.Workers[0].Device != 1 {
			return fmt.Errorf("%+v", scores)
		}
		return nil
	})
	if took := time.Since(begin); e2e.Alone() && took > time.Second {
		t.Errorf("the honest engine's event took %v", took)
	}
}

// refused is the count of refused connections for a reason.
func (e *engines) refused(t *testing.T, reason string) int {
	t.Helper()
	a, err := e.Call(t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(a.Body), `select_service_stream_refused_total{reason="`+reason+`"} `)
	if !ok {
		t.Fatalf("/metrics has no refusals for %s", reason)
	}
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// maxPeak is what the process may have taken at most, in KiB.
const maxPeak = 700 << 10

func repeat(wire []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		for {
			if _, err := w.Write(wire); err != nil {
				return err
			}
		}
	}
}

// TestFloods: whatever an engine sends, at a socket that is connected to it, at one that
// is bound, and as the answer to a replay, memory stays bounded, the connection is
// dropped and counted, and another engine's events go on.
func TestFloods(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		attack func(io.Writer) error
		reason string // of the refusals; "": none has to be
		volume int64  // bytes of each attacker; 0: 400 MiB
	}{
		"message without end":      {repeat(frame(make([]byte, mib/2), true)), "too_many_frames", 0},
		"large frames without end": {repeat(frame(make([]byte, 16*mib), true)), "too_large", 0},
		"empty frames":             {repeat(bytes.Repeat([]byte{1, 0}, mib)), "too_many_frames", 0},
		"huge length":              {repeat(append([]byte{2, 0x3f}, make([]byte, 7+mib)...)), "too_large", 0},
		"reserved flags":           {repeat([]byte{0xf8, 0}), "bad_frame", 0},
		"commands":                 {repeat([]byte("\x04\x07\x04PING\x00\x00")), "too_many_commands", 0},
		"large messages":           {repeat(rawMessage(nil, make([]byte, 8), stored(t, 100_000, 1, 1, 2, 3, 4))), "", 0},
		"small messages":           {repeat(bytes.Repeat(rawMessage(nil, make([]byte, 8), stored(t, 1, 1, 1, 2, 3, 4)), 1000)), "", 2 * mib},
		"wrong messages":           {repeat(bytes.Repeat([]byte{0, 0}, mib)), "", 2 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			e := serveEngines(t)
			volume, rounds := cmp.Or(tc.volume, 400*mib), int64(3)
			connected := newHostile("PUB", volume, rounds, tc.attack)
			bound := newHostile("PUB", volume, rounds, tc.attack)
			replay := newHostile("ROUTER", volume, rounds, tc.attack)
			silent := newHostile("PUB", 1, 1, func(w io.Writer) error { _, err := w.Write(nil); <-t.Context().Done(); return err })
			port := e2e.FreePort(t)
			e.register(t, 2, connected.listen(t), "")
			e.register(t, 3, fmt.Sprintf("tcp://*:%d", port), "")
			e.register(t, 4, silent.listen(t), replay.listen(t))
			bound.dial(t, port, 4)
			for _, a := range []*hostile{connected, bound, replay} {
				for using := true; using; {
					e.hears(t)
					select {
					case <-a.used:
						using = false
					case <-time.After(50 * time.Millisecond):
						if tc.reason != "" && a != bound && e.refused(t, tc.reason) > 2 {
							using = false // it waits longer and longer before it connects again
						}
					}
				}
			}
			e.hears(t)
			peak, err := e.Status("VmHWM")
			if err != nil || peak > maxPeak {
				t.Errorf("memory peak %d KiB (%v), want at most %d", peak, err, maxPeak)
			}
			t.Logf("peak %d MiB", peak>>10)
			if tc.reason != "" && e.refused(t, tc.reason) == 0 {
				t.Errorf("no connection was refused as %s", tc.reason)
			}
			if err := e.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			mustEnd(t, e.Process, 0)
		})
	}
}

// TestHoards: many connections to a bound socket stop in the middle of a large message,
// never say anything, or only something. Memory stays bounded, and neither another engine's events
// nor an honest publisher at the same socket are kept out.
func TestHoards(t *testing.T) {
	const connections, mib = 300, 1 << 20
	part := frame(make([]byte, 7*mib), false)[:6*mib]
	for name, first := range map[string][]byte{
		"large messages that do not end": part, "silent connections": {}, "no handshake": nil,
		"connections that send something": frame([]byte("x"), false),
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			e := serveEngines(t)
			port := e2e.FreePort(t)
			e.register(t, 3, fmt.Sprintf("tcp://*:%d", port), "")
			a := newHostile("PUB", 1<<40, connections, func(w io.Writer) error {
				_, err := w.Write(first)
				<-t.Context().Done()
				return err
			})
			if first == nil {
				a.hello = nil
			}
			a.dial(t, port, connections)
			for range 20 {
				e.hears(t)
			}
			guest := zmqtest.Connect(t, fmt.Sprintf("tcp://127.0.0.1:%d", port))
			defer guest.Close()
			guest.Subscribers(1)
			guest.Publish(0, stored(t, 1, 5, 7, 7, 7, 7))
			e2e.Eventually(t, "the event of a publisher at the same socket counts", func() error {
				a, err := e.Call(t.Context(), "POST", "/overlap_scores", e2e.Object{"model_name": "m3", "token_ids": []uint32{7, 7, 7, 7}})
				if err == nil && !bytes.Contains(a.Body, []byte(`"device_blocks":1`)) {
					err = fmt.Errorf("%v", a)
				}
				return err
			})
			if peak, err := e.Status("VmHWM"); err != nil || peak > maxPeak {
				t.Errorf("memory peak %d KiB (%v), want at most %d", peak, err, maxPeak)
			} else {
				t.Logf("peak %d MiB", peak>>10)
			}
			if n, err := e.Descriptors(); err != nil || n > 250 {
				t.Errorf("%d descriptors are open (%v)", n, err)
			}
		})
	}
}

// TestForeignSchemes: only tcp is used, whatever is registered (X4), so that no endpoint
// can be one of the process's own.
func TestForeignSchemes(t *testing.T) {
	e := serveEngines(t)
	for i, scheme := range []string{"inproc", "ipc", "udp", "ws", "wss", "pgm", "epgm", "norm", "tipc", "vmci", "TCP"} {
		endpoint := scheme + "://monitor-1-1:5557"
		want := "unsupported scheme `" + scheme + "`"
		if got := e.register(t, 10+i, endpoint, ""); !strings.Contains(got, want) {
			t.Errorf("worker at %s: %q", endpoint, got)
		}
		a, err := e.Call(t.Context(), "POST", "/conductor/register", e2e.Object{
			"endpoint": endpoint, "type": "vLLM", "modelname": "m", "instance_id": "i" + scheme, "block_size": 4, "dp_rank": 0,
		})
		if err != nil || a.Status != http.StatusBadRequest || !bytes.Contains(a.Body, []byte(want)) {
			t.Errorf("Conductor's publisher at %s: %v, %v", endpoint, a, err)
		}
	}
	e.hears(t)
}

// TestReplayStorm: an engine makes its stream ask for replays in every way it has: a
// gap at every message, answers without anything or with one new message, reconnects,
// numbers that fall.
func TestReplayStorm(t *testing.T) {
	const maxAsks = 50 // a second
	end := rawMessage(nil, bytes.Repeat([]byte{0xff}, 8), nil)
	seq := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	payload := stored(t, 1, 1, 1, 2, 3, 4)
	for name, tc := range map[string]struct {
		live   func(w io.Writer, n uint64) error
		answer func(from uint64) []byte
	}{
		"gaps and empty answers": {
			func(w io.Writer, n uint64) error { _, err := w.Write(rawMessage(nil, seq(2*n), payload)); return err },
			func(uint64) []byte { return end },
		},
		"gaps and answers": {
			func(w io.Writer, n uint64) error { _, err := w.Write(rawMessage(nil, seq(2*n), payload)); return err },
			func(from uint64) []byte { return append(rawMessage(nil, seq(from), payload), end...) },
		},
		"reconnects": {
			func(w io.Writer, n uint64) error {
				if n == 30 {
					return io.EOF
				}
				_, err := w.Write(rawMessage(nil, seq(n), payload))
				return err
			},
			func(uint64) []byte { return end },
		},
		"restarts": {
			func(w io.Writer, n uint64) error { _, err := w.Write(rawMessage(nil, seq(n%2), payload)); return err },
			func(uint64) []byte { return append(rawMessage(nil, seq(0), payload), end...) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			e := serveEngines(t)
			var asks atomic.Int64
			var newest atomic.Uint64
			engine := newHostile("PUB", 1<<40, 1<<40, func(w io.Writer) error {
				for n := uint64(1); ; n++ {
					newest.Store(n)
					if err := tc.live(w, n); err != nil {
						return err
					}
					select {
					case <-t.Context().Done():
						return nil
					case <-time.After(time.Millisecond):
					}
				}
			})
			bound := e2e.FreePort(t)
			router := hostileRouter(t, func(from uint64) []byte { asks.Add(1); return tc.answer(from) })
			e.register(t, 2, engine.listen(t), router)
			e.register(t, 3, fmt.Sprintf("tcp://*:%d", bound), router)
			engine.dial(t, bound, 2)
			begin := time.Now()
			for time.Since(begin) < 3*time.Second {
				e.hears(t)
				<-time.After(20 * time.Millisecond)
			}
			rate := float64(asks.Load()) / time.Since(begin).Seconds() / 2 // of two streams
			t.Logf("%.0f asks a second", rate)
			if rate > maxAsks {
				t.Errorf("%.0f asks a second, want at most %d", rate, maxAsks)
			}
		})
	}
}

// hostileRouter answers requests for replays.
func hostileRouter(t *testing.T, answer func(from uint64) []byte) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Write(handshake("ROUTER"))
				var got []byte
				for buf := make([]byte, 4096); ; {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					got = append(got, buf[:n]...)
					// The request: an empty frame, and a number.
					if i := bytes.Index(got, []byte{1, 0, 0, 8}); i >= 0 && len(got) >= i+12 {
						_, _ = conn.Write(answer(binary.BigEndian.Uint64(got[i+4:])))
						got = got[i+12:]
					}
				}
			}()
		}
	}()
	return "tcp://" + listener.Addr().String()
}

// TestDeadStreams: 6,000 streams that lead nowhere, and SIGTERM.
func TestDeadStreams(t *testing.T) {
	const streams, perWorker = 6000, 100
	refusing := e2e.FreePort(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // its backlog accepts, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	dead := []string{"tcp://10.255.255.1:5557", fmt.Sprintf("tcp://127.0.0.1:%d", refusing), "tcp://" + silent.Addr().String(), "tcp://name.invalid:5557"}
	e := serveEngines(t)
	for w := range streams / perWorker {
		endpoints := map[string]string{}
		for rank := range perWorker {
			endpoints[strconv.Itoa(rank)] = dead[rank%len(dead)]
		}
		e.Must(t, http.StatusCreated, "POST", "/workers", e2e.Object{
			"worker_id": 100 + w, "model_name": "dead", "endpoint": fmt.Sprintf("http://d%d:8000", w), "block_size": 4,
			"max_num_batched_tokens": 1024, "data_parallel_size": perWorker, "kv_events_endpoints": endpoints,
		}, nil)
	}
	for range 5 {
		e.hears(t)
	}
	if peak, err := e.Status("VmHWM"); err != nil || peak > maxPeak {
		t.Errorf("memory peak %d KiB (%v)", peak, err)
	} else {
		t.Logf("peak %d MiB", peak>>10)
	}
	if err := e.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, e.Process, 0)
}
