package attacks

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// BenchmarkTLS tells what TLS costs the service: its own CPU time for a selection of
// 1,000 tokens on a kept connection, and on a new one for each.
func BenchmarkTLS(b *testing.B) {
	authority := e2e.NewAuthority(b)
	pair := authority.Issue(b, "server", time.Now().Add(time.Hour))
	tokens := make([]uint32, 1000)
	for i := range tokens {
		tokens[i] = uint32(i) * 2654435761
	}
	for _, secure := range []bool{false, true} {
		port, scheme, args := strconv.Itoa(e2e.FreePort(b)), "http", []string(nil)
		if secure {
			scheme, args = "https", []string{"--tls-cert", pair.Cert, "--tls-key", pair.Key}
		}
		command := append([]string{e2e.Binary(b), "--listen", "127.0.0.1", "--port", port, "--use-kv-events=false"}, args...)
		p := e2e.Start(b, e2e.Options{Command: command})
		url := scheme + "://127.0.0.1:" + port
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool()}}}
		worker := e2e.Object{"worker_id": 1, "endpoint": "http://w", "block_size": 16}
		for range 200 {
			if _, err := e2e.Call(b.Context(), client, http.MethodPost, url+"/workers", worker); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		body := fmt.Appendf(nil, `{"token_ids":%s}`, strings.ReplaceAll(fmt.Sprint(tokens), " ", ","))
		for _, kept := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/kept=%t", scheme, kept), func(b *testing.B) {
				before := cpu(b, p)
				for b.Loop() {
					a, err := e2e.Call(b.Context(), client, http.MethodPost, url+"/select", body)
					if err != nil || a.Status != http.StatusOK {
						b.Fatal(a, err)
					}
					if !kept {
						client.CloseIdleConnections()
					}
				}
				b.ReportMetric(float64(cpu(b, p)-before)/float64(b.N)/1000, "cpu-µs/op")
			})
		}
		p.Stop()
	}
}

// cpu is the CPU time of a process so far. Its clock ticks every 10 ms.
func cpu(b *testing.B, p *e2e.Process) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] { // user and system
		n, err := strconv.Atoi(field)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
