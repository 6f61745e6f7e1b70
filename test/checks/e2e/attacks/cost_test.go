package attacks

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// publishers are engines that push their load.
type publishers struct {
	t        *testing.T
	listener net.Listener
	reading  sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func newPublishers(t *testing.T) *publishers {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &publishers{t: t, listener: listener}
	p.reading.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := conn.Write(handshake("PUB")); err != nil {
				continue
			}
			p.reading.Go(func() { _, _ = io.Copy(io.Discard, conn) })
			p.mu.Lock()
			p.conns = append(p.conns, conn)
			p.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		for _, c := range p.connected() {
			_ = c.Close()
		}
		p.reading.Wait()
	})
	return p
}

func (p *publishers) connected() []net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns
}

// publish makes each send a report once a period, spread over it, until the test ends.
func (p *publishers) publish(period time.Duration) {
	const parts = 50
	conns := p.connected()
	tick := time.NewTicker(period / parts)
	defer tick.Stop()
	var message []byte
	for step := 0; ; step++ {
		select {
		case <-p.t.Context().Done():
			return
		case <-tick.C:
		}
		if step%parts == 0 {
			n := uint64(step / parts)
			stat := loadStat(p.t, 3, n%4, 9000+n%500, 1<<20, 0, 100, 9100, 256, 1000*n, 10_000*n)
			message = rawMessage([]byte("load"), zmqtest.Seq(n), stat)
		}
		for i := step % parts; i < len(conns); i += parts {
			_, _ = conns[i].Write(message)
		}
	}
}

// TestLoadCost: where nothing else runs, 1,000 workers with 8 ranks each that push 5 reports a second
// each cost less than half of what they cost where each report wakes its stream, 0.75 of a core.
func TestLoadCost(t *testing.T) {
	if testing.Short() {
		t.Skip("8,000 connections")
	}
	const workers, ranks, rate, most = 1000, 8, 5, 0.375
	s := e2e.Serve(t, nil, "--use-kv-events=false", "--max-streams", strconv.Itoa(2*workers*ranks))
	p := newPublishers(t)
	endpoints := make(e2e.Object)
	for dp := range ranks {
		endpoints[strconv.Itoa(dp)] = "tcp://" + p.listener.Addr().String()
	}
	for id := range workers {
		attach(t, s, "m", id, e2e.Object{"data_parallel_size": ranks, "load_endpoints": endpoints})
	}
	e2e.Eventually(t, "all streams are live", func() error {
		if n := len(p.connected()); n < workers*ranks {
			return fmt.Errorf("%d of %d", n, workers*ranks)
		}
		return nil
	})
	go p.publish(time.Second / rate)
	e2e.Eventually(t, "reports come", func() error {
		if n := reportsRead(t, s); n < 3*rate*workers*ranks {
			return fmt.Errorf("%.0f", n)
		}
		return nil
	})
	before, cpu, begin := reportsRead(t, s), cpuSeconds(t, s), time.Now()
	<-time.After(10 * time.Second)
	took, used, read := time.Since(begin).Seconds(), cpuSeconds(t, s)-cpu, reportsRead(t, s)-before
	cores := used / (read / (workers * ranks * rate)) // at the rate, whatever the machine did
	t.Logf("%.0f reports in %.1f s took %.2f s of CPU: %.3f cores at %d a second", read, took, used, cores, workers*ranks*rate)
	if e2e.Alone() && cores > most {
		t.Errorf("%.3f cores, want at most %v", cores, most)
	}
}

func reportsRead(t *testing.T, s *e2e.Service) float64 {
	t.Helper()
	n, err := s.Sum(t.Context(), "select_service_load_reports_total")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// cpuSeconds is the CPU time that the service has used.
func cpuSeconds(t *testing.T, s *e2e.Service) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0.0
	for _, f := range fields[11:13] { // user and system time
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return ticks / 100
}
