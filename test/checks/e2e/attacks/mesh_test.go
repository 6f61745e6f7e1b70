package attacks

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// pair is two honest replicas that follow each other, and the endpoints at which they publish.
type pair struct {
	replicas  [2]*e2e.Service
	publisher [2]string // host:port
	booked    int
}

// newPair starts replicas with 512 MiB. peers are more publishers that the first one
// follows.
func newPair(t *testing.T, peers []string, args ...string) *pair {
	t.Helper()
	p := &pair{}
	for i := range p.publisher {
		p.publisher[i] = fmt.Sprintf("127.0.0.1:%d", e2e.FreePort(t))
	}
	for i := range p.replicas {
		follow := []string{"tcp://" + p.publisher[1-i]}
		if i == 0 {
			follow = append(follow, peers...)
		}
		_, port, _ := net.SplitHostPort(p.publisher[i])
		p.replicas[i] = e2e.Serve(t, map[string]string{"GOGC": "100"}, append([]string{
			"--use-kv-events=false", "--replica-sync-port", port, "--replica-sync-peers", strings.Join(follow, ","),
		}, args...)...)
		p.replicas[i].Must(t, http.StatusCreated, "POST", "/workers", e2e.Object{
			"worker_id": 1, "model_name": "m", "endpoint": "http://w:1", "block_size": 16,
		}, nil)
	}
	p.exchange(t, "before the attack")
	return p
}

// exchange books at each replica and waits until the other one has it.
func (p *pair) exchange(t *testing.T, when string) {
	t.Helper()
	for i, from := range p.replicas {
		p.booked++
		from.Must(t, http.StatusCreated, "POST", "/reservations", e2e.Object{
			"reservation_id": fmt.Sprint("honest-", p.booked), "model_name": "m", "worker_id": 1, "dp_rank": 0,
			"token_ids": make([]int, 64), "effective_prefill_tokens": 64,
		}, nil)
		e2e.Eventually(t, "the other replica has the booking "+when, func() error {
			loads, err := p.replicas[1-i].Loads(t.Context())
			if err != nil {
				return err
			}
			got := uint64(0)
			for _, l := range loads {
				for _, r := range l.Loads {
					got += r.Requests
				}
			}
			if got != uint64(p.booked) {
				return fmt.Errorf("%d bookings, want %d", got, p.booked)
			}
			return nil
		})
	}
}

// grown is the most memory that a process has had since before, in MiB.
func grown(t *testing.T, s *e2e.Service, before int) int {
	t.Helper()
	peak, err := s.Status("VmHWM")
	if err != nil {
		t.Fatal(err)
	}
	return (peak - before) / 1024
}

func resident(t *testing.T, s *e2e.Service) int {
	t.Helper()
	kib, err := s.Status("VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

// What a ZMTP 3.0 peer of the NULL mechanism sends to be taken for one.
func zmtpGreeting() []byte {
	g := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, "NULL"...)
	return append(g, make([]byte, 64-len(g))...)
}

func zmtpReady(socketType string) []byte {
	body := append([]byte("\x05READY\x0bSocket-Type"), binary.BigEndian.AppendUint32(nil, uint32(len(socketType)))...)
	body = append(body, socketType...)
	return append([]byte{4, byte(len(body))}, body...)
}

// zmtpFrame is a frame with a length of 8 bytes.
func zmtpFrame(flags byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{flags | 2}, uint64(len(body))), body...)
}

// attacker is a connection to a publisher.
type attacker struct {
	net.Conn
}

// attack connects and sends. Errors are the publisher's good right.
func attack(t *testing.T, address string, sends ...[]byte) attacker {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(e2e.Patience))
	for _, b := range sends {
		if _, err := conn.Write(b); err != nil {
			break
		}
	}
	return attacker{conn}
}

// flood sends a piece again and again, up to a number of bytes, and reports how many were
// taken.
func (a attacker) flood(piece []byte, total int) (sent int) {
	for sent < total {
		n, err := a.Write(piece)
		sent += n
		if err != nil {
			break
		}
	}
	return sent
}

// meshGrowth is how much memory an attack may cost a replica of 512 MiB, in MiB.
const meshGrowth = 160

// TestHostileSubscribers: whatever connects to the publisher of a replica, its memory
// stays bounded, and it goes on exchanging with an honest replica.
func TestHostileSubscribers(t *testing.T) {
	handshake := append(zmtpGreeting(), zmtpReady("SUB")...)
	many := func(n int, sends ...[]byte) func(t *testing.T, address string) {
		return func(t *testing.T, address string) {
			for range n {
				attack(t, address, sends...)
			}
		}
	}
	floods := func(connections, bytes int, piece func(i int) []byte) func(t *testing.T, address string) {
		return func(t *testing.T, address string) {
			var wg sync.WaitGroup
			for i := range connections {
				a := attack(t, address, handshake)
				wg.Go(func() { a.flood(piece(i), bytes) })
			}
			wg.Wait()
		}
	}
	for name, hostile := range map[string]func(t *testing.T, address string){
		"connections that say nothing":        many(1500),
		"half a greeting":                     many(1500, zmtpGreeting()[:11]),
		"no READY":                            many(1500, zmtpGreeting()),
		"subscribers of nothing":              many(1500, handshake),
		"subscribers of all, who do not read": many(1500, handshake, zmtpFrame(0, []byte{1})),
		"subscriptions without end": floods(16, 24<<20, func(i int) []byte {
			var b []byte
			for n := range 1000 {
				b = append(b, zmtpFrame(0, append([]byte{1}, fmt.Sprintf("%d-%d-%0200d", i, time.Now().UnixNano(), n)...))...)
			}
			return b
		}),
		"a huge frame": func(t *testing.T, address string) {
			a := attack(t, address, handshake, []byte{2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
			a.flood(make([]byte, 1<<20), 256<<20)
		},
		"empty frames": floods(4, 16<<20, func(int) []byte { return bytes.Repeat([]byte{1, 0}, 1<<15) }),
		"a message without end": floods(4, 64<<20, func(int) []byte {
			return zmtpFrame(1, make([]byte, 1<<10))
		}),
		"a command without end": floods(2, 32<<20, func(int) []byte {
			return zmtpFrame(4, append([]byte("\x04PING\x00\x00"), make([]byte, 16)...))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			p := newPair(t, nil, "--max-memory", "512MiB")
			before := resident(t, p.replicas[0])
			hostile(t, p.publisher[0])
			for i := range 5 {
				p.exchange(t, "during the attack, turn "+strconv.Itoa(i))
			}
			got := grown(t, p.replicas[0], before)
			t.Logf("memory grew by %d MiB", got)
			if got > meshGrowth {
				t.Errorf("memory grew by %d MiB, want at most %d", got, meshGrowth)
			}
		})
	}
}

// TestSlowReplicas: subscribers that do not read are cut off before they cost much
// memory, also if each of them holds other messages than the rest.
func TestSlowReplicas(t *testing.T) {
	p := newPair(t, nil, "--max-memory", "512MiB")
	before := resident(t, p.replicas[0])
	handshake := append(zmtpGreeting(), zmtpReady("SUB")...)
	tokens := make([]int, 200_000)
	for i := range tokens {
		tokens[i] = i
	}
	booking := e2e.Object{"model_name": "m", "worker_id": 1, "dp_rank": 0, "token_ids": tokens, "effective_prefill_tokens": 0}
	for i := range 200 {
		attack(t, p.publisher[0], handshake, zmtpFrame(0, []byte{1}))
		booking["reservation_id"] = fmt.Sprint("large-", i)
		p.replicas[0].Must(t, http.StatusCreated, "POST", "/reservations", booking, nil)
		p.replicas[0].Must(t, http.StatusOK, "DELETE", fmt.Sprint("/reservations/large-", i), nil, nil)
	}
	p.exchange(t, "after the attack")
	got := grown(t, p.replicas[0], before)
	t.Logf("memory grew by %d MiB", got)
	if got > meshGrowth {
		t.Errorf("memory grew by %d MiB, want at most %d", got, meshGrowth)
	}
}

// TestHostilePublisher: a replica that is told to follow a hostile peer keeps its memory
// and goes on exchanging with an honest one.
func TestHostilePublisher(t *testing.T) {
	event := []byte("dynamo.slot-tracker.v1")
	for name, tc := range map[string]struct {
		piece []byte
		total int
	}{
		"a message without end":             {zmtpFrame(1, make([]byte, 1<<20)), 512 << 20},
		"a message of small frames":         {bytes.Repeat(zmtpFrame(1, []byte("x")), 1000), 64 << 20},
		"20 million empty frames":           {bytes.Repeat([]byte{1, 0}, 1<<16), 40 << 20},
		"messages of 64 MiB":                {append(zmtpFrame(1, event), zmtpFrame(0, make([]byte, 64<<20))...), 1 << 30},
		"messages as large as may be":       {append(zmtpFrame(1, event), zmtpFrame(0, make([]byte, 8<<20-64))...), 512 << 20},
		"as large, and never the last byte": {append(zmtpFrame(1, event), zmtpFrame(0, make([]byte, 8<<20))[:7<<20]...), 7 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var serving sync.WaitGroup
			begun, done := make(chan struct{}), make(chan struct{})
			begin := sync.OnceFunc(func() { close(begun) })
			serving.Go(func() {
				left := tc.total
				var stalled []net.Conn
				for left > 0 {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					stalled = append(stalled, conn)
					<-begun
					_ = conn.SetDeadline(time.Now().Add(e2e.Patience))
					if _, err := conn.Write(append(zmtpGreeting(), zmtpReady("PUB")...)); err != nil {
						continue
					}
					if _, err := io.ReadFull(conn, make([]byte, 64)); err != nil {
						continue
					}
					left -= max(attacker{conn}.flood(tc.piece, left), 64<<20) // a connection that ends at once counts, too
				}
				close(done)
				for _, conn := range stalled {
					t.Cleanup(func() { _ = conn.Close() })
				}
			})
			t.Cleanup(func() { begin(); _ = listener.Close(); serving.Wait() })
			p := newPair(t, []string{"tcp://" + listener.Addr().String()}, "--max-memory", "512MiB")
			before := resident(t, p.replicas[0])
			begin()
			for i := range 3 {
				p.exchange(t, "during the attack, turn "+strconv.Itoa(i))
			}
			select {
			case <-done:
			case <-time.After(e2e.Patience):
				t.Fatal("the attack was not taken")
			}
			p.exchange(t, "after the attack")
			got := grown(t, p.replicas[0], before)
			t.Logf("memory grew by %d MiB", got)
			if got > meshGrowth {
				t.Errorf("memory grew by %d MiB, want at most %d", got, meshGrowth)
			}
		})
	}
}
