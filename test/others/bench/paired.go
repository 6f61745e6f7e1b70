package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// paired runs both servers at once and gives them load in slices, one after the other, so that both meet the same other
// work of the machine: for what costs a few percent, which rounds of servers that run one after the other do not show. With
// -member each request has one of that many names in turn, which has had a reservation on both.
func (r *runner) paired(specs []spec) error {
	names, member, err := memberOf(*fMember)
	if err != nil {
		return err
	}
	var servers []*server
	for i, sp := range specs {
		s, err := r.start(sp, *fPort+100*i, map[string]string{"ipeers": "", "sync": "", "speers": ""})
		if err != nil {
			return err
		}
		defer s.stop()
		if err := r.ingest(s, 0); err != nil {
			return err
		}
		if err := r.reserveAll(s, names, member); err != nil {
			return err
		}
		servers = append(servers, s)
	}
	r.sum = summary{} // one ingestion of each compares nothing
	for _, x := range splitList(*fPrompts) {
		var n int
		fmt.Sscan(x, &n)
		ps := r.w.promptsOf(n, promptCount(n))
		for _, name := range splitList(*fOps) {
			ops := make([]op, len(servers))
			for i, s := range servers {
				if ops[i] = r.memberOp(name, s, ps, names, member); ops[i] == nil {
					return fmt.Errorf("mode paired has the operations select and lifecycle, not %s", name)
				}
			}
			name += "." + kname(n)
			for slice := range *fSlices + 2 { // the first two warm up
				for k := range servers {
					i := (k + slice) % len(servers)
					before := threadsCPU(servers[i].pid)
					lr := runLoad(name, servers[i], *fConns, 0, *fDur, ops[i], 0)
					used := threadsCPU(servers[i].pid) - before
					if lr.Errors > 0 {
						return fmt.Errorf("%s: %s", name, lr.FirstErr)
					}
					if slice >= 2 {
						r.sum.add(name+".cpu_us", servers[i].name, used*1e6/float64(lr.Requests))
					}
				}
			}
		}
	}
	return nil
}

// memberOf reads -member, NAME:COUNT.
func memberOf(text string) (names int, member string, err error) {
	if text == "" {
		return 0, "", nil
	}
	member, count, _ := strings.Cut(text, ":")
	if names, err = strconv.Atoi(count); err != nil || names < 1 {
		return 0, "", fmt.Errorf("-member %s: want NAME:COUNT", text)
	}
	return names, member, nil
}

// memberOp returns an operation in the dialect of 1.6, nil if there is none of that name.
func (r *runner) memberOp(name string, s *server, ps []*prompt, names int, member string) op {
	const dialect = "/v1.6"
	named := func(i int) string {
		if names == 0 {
			return ""
		}
		return fmt.Sprintf(`%q:"%036d",`, member, i*7919%names)
	}
	switch name {
	case "select":
		tails := make([]string, len(ps))
		for i, p := range ps {
			tails[i] = string(promptFields(r.w.ex, p, "hashes")) + "}"
		}
		return func(h *hconn, i int) error {
			body := `{"model_name":"m",` + named(i) + tails[i%len(tails)]
			st, answer, err := h.do(rawReq(s.base, "POST", dialect+"/select", []byte(body)))
			if err == nil && st >= 300 {
				err = fmt.Errorf("select %d %s", st, trunc(answer, 160))
			}
			return err
		}
	case "lifecycle":
		f, _ := lifecycleOp(s.base, dialect, r.w.ex, ps, "hashes", named)
		return f
	}
	return nil
}

// reserveAll gives each name a reservation, which ends at once.
func (r *runner) reserveAll(s *server, names int, member string) error {
	f := r.memberOp("lifecycle", s, r.w.promptsOf(1024, promptCount(1024)), names, member)
	failed := make([]error, *fConns)
	var all sync.WaitGroup
	for c := range *fConns {
		all.Add(1)
		go func() {
			defer all.Done()
			h := &hconn{addr: s.base}
			for i := c; i < names && failed[c] == nil; i += *fConns {
				failed[c] = f(h, i)
			}
			if h.c != nil {
				h.c.Close()
			}
		}()
	}
	all.Wait()
	return errors.Join(failed...)
}

// threadsCPU returns the CPU seconds of the live threads of a process, to the nanosecond: procCPU counts in
// hundredths of a second.
func threadsCPU(pid int) (seconds float64) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		used, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseFloat(used, 64)
		seconds += ns / 1e9
	}
	return seconds
}
