package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
)

// source is an entry with what the API server says of it. All of it is guarded by Discovery.mu,
// but the followers, which guard themselves.
type source struct {
	entry mapping.Entry
	keep  mapping.Keep
	d     *Discovery
	index int    // in Discovery.sources
	where string // how texts name it: pool llm

	pool   *follower[*inferencePool] // of a pool
	pods   *follower[*mapping.Pod]   // of a pool that is valid, and of a selector
	slices *follower[*endpointSlice] // of a Service
	stop   context.CancelFunc        // of pods

	table   *table
	current mapping.Pool
	// exists: the pool does, or is none.
	exists  bool
	invalid string // why the pool is not valid, "" if it is
	since   time.Time
	// selector is what pods follows; another: something else than the table has.
	selector string
	another  bool
	parts    slicesByKey
}

// kindWords are how texts name the kinds of sources.
var kindWords = map[mapping.Kind]string{mapping.InferencePool: "pool", mapping.Service: "service", mapping.Selector: "selector"}

func (d *Discovery) newSource(index int, e mapping.Entry) *source {
	s := &source{
		entry: e, keep: mapping.NewKeep(&e), d: d, index: index, where: kindWords[e.Kind] + " " + e.Name,
		since: time.Now(), parts: make(slicesByKey),
	}
	s.table, s.current.Ports = newTable(s), e.TargetPorts
	s.exists = e.Kind != mapping.InferencePool
	return s
}

// open starts the first follower.
func (s *source) open() {
	now := time.Now()
	switch s.entry.Kind {
	case mapping.InferencePool:
		s.pool = (&follower[*inferencePool]{
			client: s.d.client.pools, resource: "inferencepools", group: groupPools.Group, namespace: s.entry.Namespace,
			fields: fields.OneTermEqualSelector("metadata.name", s.entry.Name).String(),
			list:   func() apiList { return new(inferencePoolList) }, convert: pools,
			sink:   sink[*inferencePool]{s.replacePool, s.putPool, s.removePool},
			counts: s.d.counts, changed: s.d.nudge,
		}).start(now)
		s.d.spawn(s.pool.run)
	case mapping.Selector:
		s.follow(s.entry.Name)
	case mapping.Service:
		s.slices = s.d.newSlices(s.entry.Namespace, s.entry.Name, s.parts.sink(func(do func()) {
			s.d.change(func() {
				do()
				s.mergeSlices()
			})
		}), s.d.nudge)
		s.d.spawn(s.slices.run)
	}
}

// follow watches the pods with other labels than before.
func (s *source) follow(selector string) {
	s.unfollow()
	s.selector, s.another = selector, true
	found := &follower[*mapping.Pod]{
		client: s.d.client.core, resource: "pods", namespace: s.entry.Namespace, labels: selector,
		list: func() apiList { return new(corev1.PodList) }, convert: pods(s.keep), counts: s.d.counts, changed: s.d.nudge,
	}
	change := func(do func(now time.Time)) {
		s.d.change(func() {
			if s.pods == found { // else it is not the source's any more
				do(time.Now())
			}
		})
	}
	found.sink = sink[*mapping.Pod]{
		replace: func(all []*mapping.Pod, keep map[string]bool) {
			change(func(now time.Time) {
				s.table.replace(all, keep, s.another, now)
				s.another = false
			})
		},
		set:    func(pod *mapping.Pod) { change(func(now time.Time) { s.table.set(pod, now) }) },
		remove: func(pod *mapping.Pod) { change(func(now time.Time) { s.table.remove(pod, now) }) },
	}
	s.pods = found.start(time.Now())
	s.stop = s.d.spawn(found.run)
}

func (s *source) unfollow() {
	if s.stop != nil {
		s.stop()
	}
	s.pods, s.stop, s.selector = nil, nil, ""
}

// setPool takes what the pool says of itself.
func (s *source) setPool(p *inferencePool) {
	now := time.Now()
	match, pool, err := p.targets()
	if err != nil {
		s.dropPool(err.Error())
		s.exists = true
		return
	}
	s.exists = true
	if s.invalid != "" {
		s.invalid, s.since = "", now
	}
	s.current = pool
	if selector := labels.Set(match).String(); selector != s.selector {
		s.follow(selector)
	}
}

// dropPool notes that there is no pool, or, with a reason, that it is not valid. Its pods have
// left.
func (s *source) dropPool(invalid string) {
	if s.exists || s.invalid != invalid {
		s.since = time.Now()
	}
	s.exists, s.invalid = false, invalid
	s.unfollow()
	s.table.leaveAll(time.Now())
}

// status returns the state of the source.
func (s *source) status() status {
	var st status
	switch {
	case s.slices != nil:
		return s.slices.status()
	case s.pool == nil && s.pods == nil: // Run has not begun
		return status{State: Syncing, Since: s.since}
	case s.pool == nil:
		return s.pods.status()
	}
	st = s.pool.status()
	switch {
	case st.State != Synced:
	case s.invalid != "":
		st.State, st.Since, st.Problem = Invalid, s.since, fmt.Sprintf("InferencePool %s/%s: %s", s.entry.Namespace, s.entry.Name, s.invalid)
	case !s.exists:
		st.State, st.Since, st.Problem = Missing, s.since, fmt.Sprintf("InferencePool %s/%s does not exist", s.entry.Namespace, s.entry.Name)
	case s.pods != nil:
		pods := s.pods.status()
		if pods.Message.Before(st.Message) { // the older is the worse
			st.Message = pods.Message
		}
		pods.Message = st.Message
		return pods
	}
	return st
}

// deniedFor is how long a source that is denied, or does not exist, may keep the process from
// being ready at its start: an API server that has just started denies everything for a while.
const deniedFor = 30 * time.Second

// settled reports whether the API server has said what the source has, or that it will not.
func (s *source) settled(st status, now time.Time) bool {
	switch st.State {
	case Missing, Invalid:
		return true
	case Forbidden, Unauthorized:
		return st.Listed || now.Sub(st.Since) >= deniedFor
	}
	return st.Listed
}

// listed reports whether the table has all pods.
func (s *source) listed(st status) bool {
	return st.Listed || st.State == Invalid || st.State == Missing && s.pool != nil && s.pool.status().Listed
}

// check makes followers without messages unreachable.
func (s *source) check(now time.Time) {
	if s.pool != nil {
		s.pool.check(now)
	}
	if s.pods != nil {
		s.pods.check(now)
	}
	if s.slices != nil {
		s.slices.check(now)
	}
}

// replacePool takes the pools that there are; the only one is the source's.
func (s *source) replacePool(all []*inferencePool, keep map[string]bool) {
	s.d.change(func() {
		for _, pool := range all {
			if pool.Name == s.entry.Name {
				s.setPool(pool)
				return
			}
		}
		if len(keep) == 0 {
			s.dropPool("")
		}
	})
}

func (s *source) putPool(pool *inferencePool) {
	if pool.Name == s.entry.Name {
		s.d.change(func() { s.setPool(pool) })
	}
}

func (s *source) removePool(pool *inferencePool) {
	if pool.Name == s.entry.Name {
		s.d.change(func() { s.dropPool("") })
	}
}

// mergeSlices makes the endpoints of all slices the pods of the table.
func (s *source) mergeSlices() {
	now := time.Now()
	found := endpointsOf(s.parts, s.d.config.IPv6)
	for key, e := range found {
		s.table.set(e.pod, now)
		if pod := s.table.pods[key]; pod != nil {
			pod.target, pod.noTarget = e.target, e.target == 0
		}
	}
	for key, pod := range s.table.pods {
		if _, present := found[key]; !present && pod.left.IsZero() {
			s.table.remove(pod.Pod, now)
		}
	}
}

// ports returns the target ports of a pod with workers. One that has left keeps those that it had.
func (s *source) ports(pod *pod, now time.Time) mapping.Pool {
	if pod.target != 0 && len(s.entry.TargetPorts) == 0 {
		return mapping.Pool{Ports: []uint16{pod.target}}
	}
	if pod.left.IsZero() && !s.another || len(pod.pool.Ports) == 0 {
		if len(pod.pool.Ports) > 0 && !slices.Equal(pod.pool.Ports, s.current.Ports) {
			pod.former = append(pod.former, formerPool{pod.pool, now})
			pod.former = pod.former[max(0, len(pod.former)-maxFormer):]
		}
		pod.pool = s.current
	}
	return pod.pool
}

// order sorts pods over all sources, the oldest first.
func order(a, b *pod) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	if c := strings.Compare(a.UID, b.UID); c != 0 {
		return c
	}
	return strings.Compare(a.key, b.key)
}
