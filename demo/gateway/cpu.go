package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// process is a process whose CPU time is measured.
type process struct {
	name string
	pid  int
}

type processes []process

func openProcesses(named []string) (p processes, err error) {
	split, err := pairs(named)
	for _, s := range split {
		pid, err := strconv.Atoi(s[1])
		if err != nil {
			return nil, fmt.Errorf("--cpu %s: %w", s[0], err)
		}
		p = append(p, process{s[0], pid})
	}
	return p, err
}

// during runs f, and adds to its result the CPU time that the processes used meanwhile.
func (p processes) during(f func() (result, error)) (result, error) {
	before, err := p.used()
	if err != nil {
		return result{}, err
	}
	r, err := f()
	if err != nil {
		return r, err
	}
	after, err := p.used()
	r.cpu = make([]time.Duration, len(p))
	for i := range after {
		r.cpu[i] = after[i] - before[i]
	}
	return r, err
}

// tick is the unit of /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// used returns the CPU time of each process, in user mode and in the kernel.
func (p processes) used() (all []time.Duration, err error) {
	for _, one := range p {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", one.pid))
		if err != nil {
			return nil, fmt.Errorf("CPU of %s: %w", one.name, err)
		}
		// The second field is the name in brackets, which may have spaces; utime and stime
		// are fields 14 and 15.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		sum := time.Duration(0)
		for _, f := range fields[11:13] {
			n, err := strconv.Atoi(f)
			if err != nil {
				return nil, fmt.Errorf("CPU of %s: %w", one.name, err)
			}
			sum += time.Duration(n) * tick
		}
		all = append(all, sum)
	}
	return all, nil
}
