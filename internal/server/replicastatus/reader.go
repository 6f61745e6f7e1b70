package replicastatus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
)

const (
	// readEvery is how often the others are read at most.
	readEvery = 5 * time.Second
	// patience is how long all of them together may take.
	patience = 2 * time.Second
	// settle is how long after a difference of loads a replica is read again: what is on its way
	// is no difference.
	settle = time.Second
	// maxStatus bounds a status in bytes, maxReads how many are read at a time, maxProcesses how
	// many are read at all.
	maxStatus, maxReads, maxProcesses = 4 << 20, 8, 64
)

// Service has what a Reader says about its own process.
type Service interface {
	BusyThresholds() []selection.ModelThresholds
	Policies(of catalog.ScopeFilter) []selection.ScopePolicy
	// PolicySection returns the policies that were set since the start, "": none were.
	PolicySection() string
	// SettingsVersion returns the version of the settings that the replicas of a fleet share, 0: none.
	SettingsVersion() uint64
	Loads(model, tenant *string) []selection.ScopeLoads
}

// Getter reads a URL that a replica has announced from the host where it is followed.
type Getter interface {
	GetAnnounced(ctx context.Context, url, host string) (io.ReadCloser, error)
}

// Reader reads the statuses of other replicas when somebody asks for them.
type Reader struct {
	config  Config
	svc     Service
	replica *replicasync.Replica // nil: reservations are not shared
	get     Getter
	now     func() time.Time

	mu    sync.Mutex // guards peers and read; it is held while the others are read
	peers []Peer
	read  time.Time
}

// New returns a reader for a service; replica is nil if reservations are not shared.
func New(config Config, svc Service, replica *replicasync.Replica, get Getter, now func() time.Time) *Reader {
	return &Reader{config: config, svc: svc, replica: replica, get: get, now: now}
}

// Stats returns what the process has sent to and heard of others, nil if nothing is shared.
func (r *Reader) Stats() *replicasync.Stats {
	if r.replica == nil {
		return nil
	}
	st := r.replica.Stats()
	return &st
}

// Peer is an endpoint that is followed, with the processes that have announced themselves there.
type Peer struct {
	Endpoint  string
	Connected bool
	Processes []Process
}

// Process is a process of a peer.
type Process struct {
	replicasync.Announced
	Status *Status // nil: it was never read
	Own    *Status // of this process, read together with Status
	Error  string  // why the last reading failed
	Read   time.Time
	Clock  time.Duration // how much its clock is ahead
	Doubt  time.Duration // by how much Clock may be wrong
}

// Peers returns the peers, as they were at most some seconds ago; of their statuses what is about
// the matching scopes.
func (r *Reader) Peers(ctx context.Context, of catalog.ScopeFilter) []Peer {
	if r.replica == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read.IsZero() || r.now().Sub(r.read) >= readEvery {
		r.readLocked(ctx)
	}
	shown := make([]Peer, len(r.peers))
	for i, p := range r.peers {
		shown[i] = Peer{Endpoint: p.Endpoint, Connected: p.Connected}
		for _, x := range p.Processes {
			if x.Status != nil {
				x.Status, x.Own = x.Status.only(of), x.Own.only(of)
			}
			shown[i].Processes = append(shown[i].Processes, x)
		}
	}
	return shown
}

// readLocked reads all processes.
func (r *Reader) readLocked(ctx context.Context) {
	before := make(map[string]Process)
	for _, p := range r.peers {
		for _, x := range p.Processes {
			before[p.Endpoint+" "+x.URL] = x
		}
	}
	r.peers = nil
	n := 0
	for _, f := range r.replica.Followed() {
		p := Peer{Endpoint: f.Endpoint, Connected: f.Connected}
		for _, a := range f.Processes {
			if n++; n > maxProcesses {
				break
			}
			x := before[f.Endpoint+" "+a.URL]
			x.Announced = a
			p.Processes = append(p.Processes, x)
		}
		r.peers = append(r.peers, p)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience+settle) // others read what this caller waits for
	defer cancel()
	var reads errgroup.Group
	reads.SetLimit(maxReads)
	for i := range r.peers {
		p := &r.peers[i]
		for k := range p.Processes {
			if x := &p.Processes[k]; x.URL != "" && !x.Absent {
				reads.Go(func() error {
					r.readOne(ctx, p.Endpoint, x)
					return nil
				})
			}
		}
	}
	_ = reads.Wait() // none fails: an error is part of the process
	r.read = r.now()
}

// readOne reads one process, and again if its loads differ.
func (r *Reader) readOne(ctx context.Context, endpoint string, x *Process) {
	for range 2 {
		began := r.now()
		st, err := r.fetch(ctx, endpoint, x.URL)
		if err != nil {
			x.Error = err.Error()
			return
		}
		ended := r.now()
		x.Status, x.Own, x.Error, x.Read = st, r.Status(), "", ended
		x.Doubt = ended.Sub(began) / 2
		x.Clock = st.Time.Sub(began.Add(x.Doubt))
		if len(x.Differing()) == 0 {
			return
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return
		}
	}
}

func (r *Reader) fetch(ctx context.Context, endpoint, base string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint of a replica: %w", err)
	}
	body, err := r.get.GetAnnounced(ctx, strings.TrimSuffix(base, "/")+Path, at.Hostname())
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // it has been read
	st := new(Status)
	if err := json.NewDecoder(io.LimitReader(body, maxStatus)).Decode(st); err != nil {
		return nil, fmt.Errorf("status of a replica: %w", err)
	}
	return st, nil
}

// Difference is a scope whose load differs.
type Difference struct {
	Own, Peer Load
}

// Differing returns the scopes that both processes have and in which they count clearly different
// numbers of requests: by more than what may be on its way between them. Blocks say nothing: those of
// output are counted by the replica alone that they are reported to.
func (p *Process) Differing() (all []Difference) {
	for _, d := range p.Common() {
		if differ(d.Own.Requests, d.Peer.Requests) {
			all = append(all, d)
		}
	}
	return all
}

// Common returns the loads of the scopes that both processes have.
func (p *Process) Common() (all []Difference) {
	if p.Status == nil {
		return nil
	}
	theirs := make(map[catalog.Scope]Load)
	for _, l := range p.Status.Loads {
		theirs[l.Scope()] = l
	}
	for _, own := range p.Own.Loads {
		if peer, both := theirs[own.Scope()]; both {
			all = append(all, Difference{own, peer})
		}
	}
	return all
}

// differ reports whether two counts are apart by more than a twentieth, and by more than a few.
func differ(a, b uint64) bool {
	const few = 8
	return max(a, b)-min(a, b) > max(few, max(a, b)/20)
}

// ThresholdsDiffer returns the models that both processes have and whose thresholds differ.
func (p *Process) ThresholdsDiffer() (models []string) {
	if p.Status == nil {
		return nil
	}
	theirs := make(map[string]Thresholds)
	for _, t := range p.Status.Thresholds {
		theirs[t.Model] = t
	}
	for _, own := range p.Own.Thresholds {
		if peer, both := theirs[own.Model]; both && !own.equal(&peer) {
			models = append(models, own.Model)
		}
	}
	return models
}

func (t *Thresholds) equal(o *Thresholds) bool {
	return same(t.DecodeBlocks, o.DecodeBlocks) && same(t.PrefillTokens, o.PrefillTokens) && same(t.PrefillFraction, o.PrefillFraction)
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// PoliciesDiffer reports whether choices are made by different rules: settings, or the policy of a
// scope that both have.
func (p *Process) PoliciesDiffer() bool {
	if p.Status == nil {
		return false
	}
	if p.Own.Settings != p.Status.Settings || p.Own.Contract != p.Status.Contract {
		return true
	}
	for _, d := range p.Common() {
		if d.Own.Policy != d.Peer.Policy {
			return true
		}
	}
	return false
}

// ClocksApart reports whether the clocks are surely apart by more than a second.
func (p *Process) ClocksApart() bool {
	return p.Status != nil && p.Clock.Abs() > time.Second+p.Doubt
}
