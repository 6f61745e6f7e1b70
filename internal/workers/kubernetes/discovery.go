package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Config has what discovery is told.
type Config struct {
	mapping.Settings
	Entries []mapping.Entry
	// Catalog is what Run applies the workers to. Those of Kubernetes that it has then are of an
	// earlier life of the process.
	Catalog *catalog.Catalog
	// IPv6: of a Service, IPv6 addresses count, and not IPv4.
	IPv6 bool
	// Peers finds the other replicas; nil: they are not looked for.
	Peers *PeersConfig
	// Memory counts the answers of the API server while they are read; nil: nobody counts.
	Memory *memory.Account
	Log    zerolog.Logger
}

const (
	// Changes are gathered until none has come for gatherQuiet, at most gatherMost.
	gatherQuiet = 50 * time.Millisecond
	gatherMost  = 250 * time.Millisecond
	// excludedEvery is how often pods are tried again that the catalog has no place for, and
	// checkEvery how often silent sources are looked for.
	excludedEvery = 5 * time.Second
	checkEvery    = time.Second
	// logEvery is how often an error that stays is logged again.
	logEvery = time.Minute
	// maxPods bounds the pods of all sources.
	maxPods = 16_384
)

// Heard is part of workers.Hearer: ranks and endpoints may depend on what an engine says.
func (d *Discovery) Heard() { d.change(func() {}) }

// Discovery finds workers in Kubernetes. It is a workers.Source.
type Discovery struct {
	config Config
	client *Client
	counts *Counters
	log    zerolog.Logger
	peers  *peers // nil: not looked for
	// applied has how long changes of the API server took to reach the catalog, in seconds.
	applied *metrics.Histogram

	wake chan struct{} // holds a token while there is something to look at
	// spawn starts a goroutine of Run, and returns what ends it. Set by Run.
	spawn func(func(context.Context)) context.CancelFunc
	// placed has the workers of the last plan that was applied. Only follow uses it.
	placed map[uint64]bool

	mu      sync.Mutex // guards the fields below and the sources
	sources []*source
	first   time.Time // of the changes that are not applied yet; zero: none
	last    time.Time
	ready   bool              // every source has been settled
	result  result            // of the last plan
	logged  map[string]logged // by source
}

type logged struct {
	text string
	at   time.Time
}

// New returns discovery over an API server. Nothing runs until Run.
func New(config Config, client *Client) *Discovery {
	d := &Discovery{
		config: config, client: client, counts: newCounters(), log: config.Log,
		applied: metrics.NewHistogram(applyBounds), wake: make(chan struct{}, 1), logged: make(map[string]logged),
	}
	client.reads.memory = config.Memory
	if config.Peers != nil {
		d.peers = d.newPeers(*config.Peers)
	}
	for _, e := range config.Entries {
		d.sources = append(d.sources, d.newSource(len(d.sources), e))
	}
	return d
}

// Kind is part of workers.Source.
func (*Discovery) Kind() catalog.SourceKind { return catalog.SourceKubernetes }

// Run is part of workers.Source: it follows the sources until ctx ends.
func (d *Discovery) Run(ctx context.Context, apply workers.Apply) error {
	g, ctx := errgroup.WithContext(ctx)
	d.spawn = func(run func(context.Context)) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		g.Go(func() error {
			defer cancel()
			run(ctx)
			return nil
		})
		return cancel
	}
	restored := d.config.Catalog.List(nil, nil)
	served := make(map[string][]place)
	for _, w := range restored {
		if uid := w.Source.UID; w.Source.Kind == catalog.SourceKubernetes && uid != "" {
			served[uid] = append(served[uid], place{portIn(w.Address()), w.ID})
		}
	}
	d.mu.Lock()
	for _, s := range d.sources {
		s.table.served = served
		s.open()
	}
	d.mu.Unlock()
	if d.peers != nil {
		d.spawn(d.peers.slices.run)
	}
	g.Go(func() error {
		d.follow(ctx, apply)
		return nil
	})
	return g.Wait()
}

// change makes a change of the sources.
func (d *Discovery) change(do func()) {
	d.mu.Lock()
	do()
	d.last = time.Now()
	if d.first.IsZero() {
		d.first = d.last
	}
	d.mu.Unlock()
	d.nudge()
}

// nudge makes follow look.
func (d *Discovery) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// follow applies changes, gathered, until ctx ends.
func (d *Discovery) follow(ctx context.Context, apply workers.Apply) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for {
		timer.Reset(min(time.Until(next), checkEvery))
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
			if !d.gather(ctx) {
				return
			}
			next = d.apply(apply)
		case now := <-timer.C:
			d.mu.Lock()
			for _, s := range d.sources {
				s.check(now)
			}
			settling := !d.ready
			d.mu.Unlock()
			if settling || !now.Before(next) {
				next = d.apply(apply)
			}
		}
	}
}

// gather waits until changes have stopped coming for a moment. It reports whether ctx goes on.
func (d *Discovery) gather(ctx context.Context) bool {
	for {
		d.mu.Lock()
		first, last := d.first, d.last
		d.mu.Unlock()
		if first.IsZero() {
			return true // only a state has changed
		}
		wait := min(time.Until(last.Add(gatherQuiet)), time.Until(first.Add(gatherMost)))
		if wait <= 0 {
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// forever is when to look again if nothing is to be done.
const forever = 24 * time.Hour

// apply hands the workers to the catalog, and returns when to look again.
func (d *Discovery) apply(apply workers.Apply) (next time.Time) {
	now := time.Now()
	d.mu.Lock()
	p := d.plan(now)
	first := d.first
	d.first = time.Time{}
	d.mu.Unlock()

	set := catalog.Set{Records: p.records}
	if len(p.unlisted) > 0 {
		set.Keep = func(w *catalog.Worker) bool {
			return p.unlisted[sourceName{w.Source.Namespace, w.Source.Pool}] && !d.placed[w.ID] && !p.named[w.Source.Namespace+"/"+w.Source.Pod]
		}
	}
	if len(p.moved) > 0 {
		// What these ids have is of other engines: they are removed, then added.
		without := set
		without.Records = slices.DeleteFunc(slices.Clone(p.records), func(r catalog.Record) bool { return slices.Contains(p.moved, r.ID) })
		if _, err := apply(without); err != nil {
			d.log.Warn().Err(err).Msg("discovered workers were refused")
		}
	}
	changed, err := apply(set)
	if err != nil {
		d.log.Warn().Err(err).Msg("discovered workers were refused")
		return now.Add(excludedEvery)
	}
	if !first.IsZero() {
		d.applied.Observe(time.Since(first).Seconds())
	}
	for _, e := range changed.Excluded {
		p.owners[e.Index].exclude(p, excludedBy(e.Err), e.Err.Error())
	}
	d.placed = make(map[uint64]bool, len(p.records))
	for i := range p.records {
		d.placed[p.records[i].ID] = true
	}
	d.mu.Lock()
	d.result = p.result()
	d.ready = d.ready || p.settled
	d.logStates(p, now)
	d.mu.Unlock()
	if n := len(changed.Added) + len(changed.Changed) + len(changed.Removed); n > 0 {
		d.log.Info().Int("added", len(changed.Added)).Int("changed", len(changed.Changed)).Int("removed", len(changed.Removed)).
			Int("unchanged", changed.Unchanged).Int("excluded", len(p.excluded)).Msg("discovered workers applied")
		d.log.Debug().Uints64("added", changed.Added).Uints64("changed", changed.Changed).Uints64("removed", changed.Removed).Msg("discovered workers")
	}
	if len(changed.Excluded) > 0 {
		p.until(now.Add(excludedEvery))
	}
	return p.next
}

// portIn returns the port at the end of an endpoint.
func portIn(endpoint string) uint16 {
	n, _ := strconv.ParseUint(endpoint[strings.LastIndexByte(endpoint, ':')+1:], 10, 16)
	return uint16(n)
}

// excludedBy returns the reason of metrics for an error of the catalog.
func excludedBy(err error) string {
	if _, limit := errors.AsType[*catalog.LimitError](err); limit {
		return mapping.ExcludedLimit
	}
	if _, invalid := errors.AsType[*catalog.InvalidError](err); invalid {
		return mapping.ExcludedInvalid
	}
	return mapping.ExcludedTaken
}

// plan is what the catalog should have at a moment.
type plan struct {
	records  []catalog.Record
	owners   []*decision // of the records, by index
	moved    []uint64    // ids of records that another engine has now
	serving  []*decision
	counts   []Pods // by source, without those of serving
	excluded []Excluded
	next     time.Time
	settled  bool
	states   []status
	// unlisted has the sources whose pods are not known yet.
	unlisted map[sourceName]bool
	named    map[string]bool // pods that are known
	sources  []*source
}

// sourceName is what a worker tells of the source that it was found by.
type sourceName struct{ namespace, name string }

// decision is what a plan makes of a pod with workers.
type decision struct {
	*pod
	phase    phase
	ids      []uint64 // of the workers, but for those of ports that the source had before
	excluded bool
}

// exclude takes a pod out of the counts of those with workers.
func (d *decision) exclude(p *plan, reason, why string) {
	if d.excluded {
		return
	}
	d.excluded = true
	p.exclude(d.pod, reason, why)
}

func (p *plan) exclude(of *pod, reason, why string) {
	p.counts[of.source.index].Excluded++
	p.excluded = append(p.excluded, Excluded{Source: of.source.entry.Name, Pod: of.key, Reason: reason, Why: why})
}

// until makes the plan void at a moment.
func (p *plan) until(at time.Time) {
	if !at.IsZero() && at.Before(p.next) {
		p.next = at
	}
}

// plan returns what the catalog should have now. d.mu is held.
func (d *Discovery) plan(now time.Time) *plan {
	p := &plan{
		counts: make([]Pods, len(d.sources)), next: now.Add(forever), settled: true,
		unlisted: make(map[sourceName]bool), named: make(map[string]bool), sources: d.sources,
	}
	// A pod of several entries is the first one's that has it.
	owner := make(map[string]*source)
	var all []*pod
	for _, s := range d.sources {
		st := s.status()
		p.states = append(p.states, st)
		p.settled = p.settled && s.settled(st, now)
		s.table.forget(now)
		if !s.listed(st) && (s.pods == nil || !s.pods.status().Listed) {
			p.unlisted[sourceName{s.entry.Namespace, s.entry.Name}] = true
		}
		for key, pod := range s.table.pods {
			if had := owner[key]; had == nil || !had.table.pods[key].left.IsZero() && pod.left.IsZero() {
				owner[key] = s
			}
			all = append(all, pod)
		}
	}
	slices.SortFunc(all, order) // older pods take their ids first
	pl := &planner{plan: p, d: d, now: now, ids: make(map[uint64]string, len(all))}
	for _, pod := range all {
		if pod.left.IsZero() {
			p.counts[pod.source.index].Selected++
		}
		switch {
		case owner[pod.key] == pod.source:
			pl.add(pod)
		case pod.left.IsZero():
			p.exclude(pod, mapping.ExcludedDuplicate, "an earlier entry has the pod")
		}
	}
	return p
}

// planner adds pods to a plan.
type planner struct {
	*plan
	d    *Discovery
	now  time.Time
	ids  map[uint64]string // taken, and the pods that have them
	pods int               // with workers, or excluded for a reason of theirs
}

// add adds a pod of its source: its workers, unless it is not there yet or is excluded.
func (p *planner) add(pod *pod) {
	s := pod.source
	p.named[pod.key] = true
	ph, why, until := s.table.judge(pod, false, p.now)
	p.until(until)
	switch ph {
	case absent:
		return
	case waiting:
		p.counts[s.index].Waiting++
		return
	}
	pool := s.ports(pod, p.now)
	m := p.mapped(pod, &pool)
	p.d.warn(pod, m.Unknown)
	if m.Excluded != "" {
		p.exclude(pod, m.Excluded, m.Why)
		return
	}
	if m.Cordoned {
		ph, why, _ = s.table.judge(pod, true, p.now)
	}
	if pod.noTarget && len(s.entry.TargetPorts) == 0 {
		m = p.d.withoutTarget(pod)
	}
	if p.pods++; p.pods > maxPods {
		p.exclude(pod, mapping.ExcludedLimit, fmt.Sprintf("there are more than %d pods", maxPods))
		return
	}
	for i := range m.Workers {
		if taken, is := p.ids[m.Workers[i].Record.ID]; is && taken != pod.key {
			p.exclude(pod, mapping.ExcludedTaken, fmt.Sprintf("the pod %s has its worker id %d", taken, m.Workers[i].Record.ID))
			return
		}
	}
	of := &decision{pod: pod, phase: ph}
	p.serve(of, m.Workers, why)
	p.drain(of, &pool)
	if len(m.Workers) == 0 {
		p.exclude(pod, mapping.ExcludedInvalid, fmt.Sprintf("its active-ports name none of the target ports %v", pool.Ports))
		return
	}
	p.serving = append(p.serving, of)
}

// mapped returns the workers of a pod behind target ports.
func (p *planner) mapped(pod *pod, pool *mapping.Pool) mapping.Mapped {
	return mapping.Map(pod.Pod, pool, &pod.source.entry, &p.d.config.Settings, func(of *catalog.Record) *catalog.Description {
		of.Source, of.Describe.Turn = pod.origin(), pod.readyTurn
		return p.d.config.Catalog.Told(of)
	})
}

// origin returns where workers of a pod come from.
func (p *pod) origin() catalog.Source {
	return catalog.Source{Kind: catalog.SourceKubernetes, Namespace: p.Namespace, Pod: p.Name, UID: p.UID, Pool: p.source.entry.Name}
}

// serve adds the workers at the pod's target ports, which drain if why is not "".
func (p *planner) serve(of *decision, workers []mapping.Worker, why string) {
	places := make([]place, 0, len(workers))
	for i := range workers {
		w := &workers[i]
		of.ids = append(of.ids, w.Record.ID)
		places = append(places, place{w.Port, w.Record.ID})
		p.emit(of, w, why)
	}
	p.moved = append(p.moved, of.move(places)...)
}

// drain adds the workers at target ports that the pod had before, as long as they are kept.
func (p *planner) drain(of *decision, pool *mapping.Pool) {
	grace := of.source.entry.NotReadyGrace
	of.former = slices.DeleteFunc(of.former, func(f formerPool) bool { return !p.now.Before(f.since.Add(grace)) })
	for _, f := range of.former {
		p.until(f.since.Add(grace))
		old := p.mapped(of.pod, &f.Pool)
		for i := range old.Workers {
			w := &old.Workers[i]
			if _, taken := p.ids[w.Record.ID]; taken {
				continue
			}
			how := "left"
			if slices.Contains(pool.Ports, w.Port) {
				how = "has another place in"
			}
			p.emit(of, w, fmt.Sprintf("port %d of pod %s %s %s", w.Port, of.key, how, of.source.where))
		}
	}
}

// emit adds a worker of a pod, which drains if why is not "".
func (p *planner) emit(of *decision, w *mapping.Worker, why string) {
	p.ids[w.Record.ID] = of.key
	w.Record.Draining, w.Record.Faults = why, w.Reasons
	w.Record.Source = of.origin()
	p.records = append(p.records, w.Record)
	p.owners = append(p.owners, of)
}

// withoutTarget returns the worker of an endpoint whose slice has no port for its HTTP server.
func (d *Discovery) withoutTarget(pod *pod) mapping.Mapped {
	pool := mapping.Pool{Ports: []uint16{0}}
	m := mapping.Map(pod.Pod, &pool, &pod.source.entry, &d.config.Settings, func(*catalog.Record) *catalog.Description { return nil })
	for i := range m.Workers {
		w := &m.Workers[i]
		w.Record.Endpoint, w.Record.Describe = nil, nil
		w.Reasons = []string{"its EndpointSlice has no port for HTTP"}
	}
	return m
}

// warn warns, once a pod, of annotations without a meaning.
func (d *Discovery) warn(pod *pod, unknown []string) {
	if len(unknown) == 0 || pod.warned {
		return
	}
	pod.warned = true
	d.counts.unknown(len(unknown))
	d.log.Warn().Str("pod", pod.key).Strs("annotations", unknown[:min(8, len(unknown))]).Msg("annotations of a pod have no meaning")
}

// logStates logs errors of sources once, and again every minute while they last. d.mu is held.
func (d *Discovery) logStates(p *plan, now time.Time) {
	for i, s := range p.sources {
		st := p.states[i]
		was, known := d.logged[s.where]
		if st.State == Synced || st.State == Syncing && st.Problem == "" {
			if known && st.State == Synced {
				d.log.Info().Str("source", s.where).Msg("source in Kubernetes is synced again")
				delete(d.logged, s.where)
			}
			continue
		}
		if text := string(st.State); was.text != text || now.Sub(was.at) >= logEvery {
			d.logged[s.where] = logged{text, now}
			d.log.Warn().Str("source", s.where).Str("namespace", s.entry.Namespace).Str("state", text).Str("error", catalog.Clip(st.Problem)).
				Msg("source in Kubernetes is not synced")
		}
	}
}

// Listed is part of workers.Lister: it reports whether requests may come, because every source
// has been listed once, and at least one exists.
func (d *Discovery) Listed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ready {
		return false
	}
	return len(d.sources) == 0 || slices.ContainsFunc(d.sources, func(s *source) bool { return s.exists && s.invalid == "" })
}
