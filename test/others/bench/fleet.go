package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// registerIdle registers -idle workers more, that have no cache, with -ranks ranks each.
func registerIdle(s *server, cfg workloadCfg) error {
	h := &hconn{addr: s.base}
	defer h.close()
	for i := range *fIdle {
		body := fmt.Appendf(nil, `{"worker_id":%d,"model_name":"m","endpoint":"http://127.0.0.1:1","block_size":%d,`+
			`"data_parallel_start_rank":0,"data_parallel_size":%d,"max_num_batched_tokens":1000000000,"total_kv_blocks":%d}`,
			cfg.Workers+i, cfg.BlockSize, *fRanks, cfg.Capacity)
		status, answer, err := h.do(rawReq(s.base, "POST", "/workers", body))
		if err != nil {
			return fmt.Errorf("register worker %d: %w", cfg.Workers+i, err)
		}
		if status/100 != 2 {
			return fmt.Errorf("register worker %d: status %d %s", cfg.Workers+i, status, trunc(answer, 160))
		}
	}
	return nil
}

// reads measures what operators and replicas read: how long until the first byte of
// /dump, the time and CPU of a scrape, and the resident memory after them.
func (r *runner) reads(s *server, round int) error {
	dump, _, err := get(s, "/dump", true)
	if err != nil {
		return err
	}
	const scrapes = 20 // CPU is counted in steps of 10 ms
	var took time.Duration
	var size int
	cpu := procCPU(s.pid)
	for range scrapes {
		t, n, err := get(s, "/metrics", false)
		if err != nil {
			return err
		}
		took, size = took+t, n
	}
	rss, _ := procRSS(s.pid)
	m := map[string]any{
		"kind": "reads", "server": s.name, "round": round, "dump_first_byte_ms": dump.Seconds() * 1e3,
		"scrape_ms": took.Seconds() * 1e3 / scrapes, "scrape_cpu_ms": (procCPU(s.pid) - cpu) * 1e3 / scrapes, "scrape_bytes": size,
		"rss_mib": float64(rss) / 1024,
	}
	emit(m)
	for _, k := range []string{"dump_first_byte_ms", "scrape_ms", "scrape_cpu_ms", "rss_mib"} {
		r.sum.add("reads."+k, s.name, m[k].(float64))
	}
	return nil
}

// get returns how long a GET takes until its answer begins, or ends, and its bytes.
func get(s *server, path string, first bool) (time.Duration, int, error) {
	c, err := net.Dial("tcp", s.base)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(*fTimeout))
	began := time.Now()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, s.base)
	answer := bufio.NewReader(c)
	line, err := answer.ReadString('\n')
	if err == nil && !strings.Contains(line, " 200 ") {
		err = fmt.Errorf("GET %s: %s", path, strings.TrimSpace(line))
	}
	if err != nil || first {
		return time.Since(began), 0, err
	}
	n, err := answer.WriteTo(io.Discard)
	return time.Since(began), int(n), err
}
