package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

const (
	pollInterval      = 10 * time.Millisecond
	distributionSends = 100
)

// job is a request that was started.
type job struct {
	done chan struct{} // closed when the rest is set
	got  answer
	err  error
}

func (s *Step) label() string {
	switch {
	case s.SleepMS != nil:
		return fmt.Sprintf("sleep_ms %d", *s.SleepMS)
	case s.Join != "":
		return "join " + s.Join
	case s.Pending != "":
		return "pending " + s.Pending
	case s.RestartPublisher != "":
		return "restart_publisher " + s.RestartPublisher
	case s.Publish != nil:
		return "publish " + show(s.Publish, 80)
	case s.ReplayServer != nil:
		return "replay_server " + show(s.ReplayServer, 80)
	case s.ReplayRequests != nil:
		return "replay_requests " + s.ReplayRequests.Endpoint
	case s.Subscribe != nil:
		return "subscribe " + s.Subscribe.Name
	case s.Message != nil:
		return "message " + show(s.Message, 80)
	case s.Parallel != nil:
		return fmt.Sprintf("parallel x%d", len(s.Parallel.Requests))
	case s.WaitUntil != nil:
		return "wait_until " + s.WaitUntil.Method + " " + s.WaitUntil.Path
	}
	return s.Method + " " + s.Path
}

// run plays one step and describes what went wrong.
func (p *player) run(s *Step) []string {
	switch {
	case s.SleepMS != nil:
		time.Sleep(milliseconds(*s.SleepMS, 0))
		return nil
	case s.Publish != nil:
		return p.publish(s.Publish)
	case s.RestartPublisher != "":
		return p.restart(s.RestartPublisher)
	case s.ReplayServer != nil:
		return p.setReplay(s.ReplayServer)
	case s.ReplayRequests != nil:
		return p.replayRequests(s.ReplayRequests)
	case s.Subscribe != nil:
		return p.subscribe(s.Subscribe)
	case s.Message != nil:
		return p.receive(s.Message)
	case s.WaitUntil != nil:
		return p.waitUntil(s.WaitUntil)
	case s.Parallel != nil:
		return p.parallel(s.Parallel)
	case s.Distribution != nil:
		return p.distribution(s)
	case s.Join != "":
		return p.join(s)
	case s.Pending != "":
		return p.pending(s.Pending)
	case s.Async != "":
		return p.begin(s)
	}
	return p.plain(s)
}

// milliseconds is n ms, or otherwise if n is 0.
func milliseconds(n int, otherwise time.Duration) time.Duration {
	if n == 0 {
		return otherwise
	}
	return time.Duration(n) * time.Millisecond
}

func (p *player) plain(s *Step) []string {
	var got answer
	for range max(s.Repeat, 1) {
		began := time.Now()
		var err error
		if got, err = p.request(&s.Request); err != nil {
			return []string{err.Error()}
		}
		faults := s.Expect.check(got)
		if took := time.Since(began); e2e.Alone() && s.WithinMS > 0 && took > milliseconds(s.WithinMS, 0) {
			faults = append(faults, fmt.Sprintf("took %v, want at most %d ms", took.Round(time.Millisecond), s.WithinMS))
		}
		if len(faults) > 0 {
			return faults
		}
	}
	return p.save(s, got)
}

func (p *player) save(s *Step, got answer) []string {
	for name, text := range s.Save {
		v, err := got.get(text)
		if err != nil {
			return []string{err.Error()}
		}
		p.vars["{var:"+name+"}"] = plainText(v)
	}
	return nil
}

// plainText is a value as it stands in a path, or as the key of a tally.
func plainText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return show(v, 1000)
}

func (p *player) begin(s *Step) []string {
	m, err := p.message(&s.Request)
	if err != nil {
		return []string{err.Error()}
	}
	j := &job{done: make(chan struct{})}
	p.jobs[s.Async] = j
	go func() {
		defer close(j.done)
		j.got, j.err = p.send(m)
	}()
	return nil
}

func (p *player) join(s *Step) []string {
	j := p.jobs[s.Join]
	if j == nil {
		return []string{"no request has this name"}
	}
	delete(p.jobs, s.Join)
	select {
	case <-j.done:
	case <-time.After(patience):
		return []string{fmt.Sprintf("request %s did not end within %v", s.Join, patience)}
	}
	if j.err != nil {
		return []string{j.err.Error()}
	}
	return s.Expect.check(j.got)
}

func (p *player) pending(name string) []string {
	j := p.jobs[name]
	if j == nil {
		return []string{"no request has this name"}
	}
	select {
	case <-j.done:
		return []string{fmt.Sprintf("request %s is already answered: %d %v (%v)", name, j.got.status, j.got, j.err)}
	default:
		return nil
	}
}

func (p *player) waitUntil(w *WaitUntil) []string {
	last := "no answer"
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(pollInterval) {
		got, err := p.request(&w.Request)
		switch {
		case err != nil:
			return []string{err.Error()}
		case !got.isJSON:
			last = fmt.Sprintf("%d %v", got.status, got)
			continue
		}
		faults := checkAll(w.Checks, got.value)
		if len(faults) == 0 {
			return nil
		}
		last = strings.Join(faults, "; ") + "; in " + got.String()
	}
	return []string{"timed out: " + last}
}

func (p *player) distribution(s *Step) []string {
	sends := s.Repeat
	if sends == 0 {
		sends = distributionSends
	}
	counts := map[string]int{}
	for range sends {
		got, err := p.request(&s.Request)
		if err != nil {
			return []string{err.Error()}
		}
		v, err := got.get(s.Distribution.Path)
		if err != nil {
			return []string{err.Error()}
		}
		if _, none := v.(missing); none {
			counts[fmt.Sprintf("status %d", got.status)]++
		} else {
			counts[plainText(v)]++
		}
	}
	var faults []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		if _, ok := s.Distribution.Range[k]; !ok {
			faults = append(faults, fmt.Sprintf("unexpected %s, %d times", k, counts[k]))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Distribution.Range)) {
		if r := s.Distribution.Range[k]; counts[k] < r[0] || counts[k] > r[1] {
			faults = append(faults, fmt.Sprintf("%s came %d times, want %d to %d (all: %v)", k, counts[k], r[0], r[1], counts))
		}
	}
	return faults
}

func (p *player) parallel(par *Parallel) []string {
	var messages []message
	for i := range par.Requests {
		r := &par.Requests[i]
		m, err := p.message(&r.Request)
		if err != nil {
			return []string{err.Error()}
		}
		messages = append(messages, slices.Repeat([]message{m}, max(r.Times, 1))...)
	}
	answers, errs := p.sendAll(messages)
	statuses, tally := map[string]int{}, map[string]int{}
	var faults []string
	for i, got := range answers {
		statuses[fmt.Sprint(got.status)]++
		if errs[i] != nil && len(faults) == 0 {
			faults = append(faults, errs[i].Error())
		}
		if par.Tally == nil {
			continue
		}
		v, err := got.get(par.Tally.Path)
		if err != nil {
			return []string{err.Error()}
		}
		if _, none := v.(missing); !none {
			tally[plainText(v)]++
		}
	}
	faults = append(faults, miscounted("statuses", par.Statuses, statuses)...)
	if par.Tally != nil {
		faults = append(faults, miscounted("tally", par.Tally.Counts, tally)...)
	}
	return faults
}

// sendAll sends all messages at once.
func (p *player) sendAll(messages []message) ([]answer, []error) {
	answers, errs := make([]answer, len(messages)), make([]error, len(messages))
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for i, m := range messages {
		wg.Go(func() {
			<-gate
			answers[i], errs[i] = p.send(m)
		})
	}
	close(gate)
	wg.Wait()
	return answers, errs
}

// miscounted compares counts with a number or [least, most] each; what is not
// wanted at all must not come.
func miscounted(what string, want map[string]any, have map[string]int) []string {
	keys := map[string]bool{}
	for k := range want {
		keys[k] = true
	}
	for k := range have {
		keys[k] = true
	}
	var faults []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		low, high, err := bounds(want[k])
		if err != nil {
			faults = append(faults, err.Error())
		} else if have[k] < low || have[k] > high {
			faults = append(faults, fmt.Sprintf("%s: %s came %d times, want %d to %d (all: %v)", what, k, have[k], low, high, have))
		}
	}
	return faults
}

func bounds(v any) (low, high int, err error) {
	list, ok := v.([]any)
	switch {
	case v == nil:
		return 0, 0, nil
	case !ok:
		list = []any{v, v}
	case len(list) != 2:
		return 0, 0, fmt.Errorf("%s is not a range", show(v, 50))
	}
	var ends [2]int64
	for i, x := range list {
		n, _ := x.(json.Number)
		if ends[i], err = n.Int64(); err != nil {
			return 0, 0, fmt.Errorf("%s is not a range: %w", show(v, 50), err)
		}
	}
	return int(ends[0]), int(ends[1]), nil
}
