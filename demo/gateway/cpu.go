package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/select-service/select-service/demo/sim/proc"
	"github.com/select-service/select-service/demo/sim/traffic"
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
func (p processes) during(f func() (traffic.Result, error)) (result, error) {
	before, err := p.used()
	if err != nil {
		return result{}, err
	}
	played, err := f()
	if err != nil {
		return result{}, err
	}
	r := result{Result: played}
	after, err := p.used()
	for i := range after {
		r.cpu = append(r.cpu, after[i]-before[i])
	}
	return r, err
}

// used returns the CPU time of each process.
func (p processes) used() (all []time.Duration, err error) {
	for _, one := range p {
		d, err := proc.CPU(one.pid)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		all = append(all, d)
	}
	return all, nil
}
