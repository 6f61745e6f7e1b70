package history

import (
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// Window is how many of a process's latest sequence numbers are told apart;
	// what is below counts as ended. 300 s at 20,000 events/s fit.
	Window = 1 << 23
	// MaxProcesses bounds the processes, besides the own one, that are remembered.
	MaxProcesses = 256
	// minRetention is the minimum of Numbered.retention. It is twice the default lifetime of
	// 300 s, because an event may have been under way for long.
	minRetention = 600 * time.Second
	// leaseMargin is how much longer than a lease can run its end is remembered.
	leaseMargin = time.Minute
	// dropLeasesEvery is the interval at which old ends of leases are dropped.
	dropLeasesEvery = 30 * time.Second
	// mergePerLock is how many ranges or numbers Merge enters under one hold of the
	// lock.
	mergePerLock = 1024
	// maxEndedRanges bounds the ranges that Ended returns, of all processes together.
	maxEndedRanges = 1 << 18
)

// Origin names a reservation over all replicas: the process that accepted it, and
// the sequence number that this process gave to the event of its acceptance.
// Numbers begin with 1 and are never used again. Processes that do not number
// their events (Dynamo's) have Sequence 0; their reservations are told apart by
// scope and id.
type Origin struct{ Process, Sequence uint64 }

// Numbered reports whether the process numbers its reservations.
func (o Origin) Numbered() bool { return o.Sequence != 0 }

// EndReason is the reason why a reservation is no longer live.
type EndReason uint8

// The reasons of an end.
const (
	// Freed: by a caller or by age. It has ended for all replicas, for good.
	Freed EndReason = iota
	// RankRemoved: its rank was removed. It has ended for this ledger only, for good.
	RankRemoved
	// LeaseExpired: its lease was not renewed, as far as this ledger knows, or its rank was
	// removed here. A snapshot that knows of a renewal may bring it back.
	LeaseExpired
	// Replaced: only others had reported it, and now the report of its own process
	// takes its place.
	Replaced
	// Displaced: it made room for another one. Nothing is remembered, so that it may
	// come back once there is room.
	Displaced
)

var endReasons = [...]string{"freed", "rank removed", "lease expired", "replaced", "displaced"}

// String returns the reason in words.
func (e EndReason) String() string {
	if int(e) < len(endReasons) {
		return endReasons[e]
	}
	return "invalid"
}

// Verdict says whether a reservation that is not live in the ledger may become live.
type Verdict uint8

// The verdicts.
const (
	// MayLive: nothing is known against it.
	MayLive Verdict = iota
	// HasEnded: it has ended, or was lost with its rank here.
	HasEnded
	// NoRoom: MaxProcesses other processes have live reservations, so that nothing
	// can be remembered of this process.
	NoRoom
)

var verdicts = [...]string{"may live", "has ended", "no room"}

// String returns the verdict in words.
func (v Verdict) String() string {
	if int(v) < len(verdicts) {
		return verdicts[v]
	}
	return "invalid"
}

// Numbered remembers the reservations of other processes that have sequence
// numbers and are no longer live. For the own process it needs no memory: any
// reservation that it accepted and that is not live has ended.
type Numbered struct {
	own uint64
	// retention is the age at which a number counts as ended, unless its reservation has a
	// lease; constant once in use.
	retention time.Duration

	// mu guards the fields below. It is an innermost lock.
	mu        sync.Mutex
	byProcess map[uint64]*processHistory // at most MaxProcesses, the own process not among them
	memory    accounts
}

// processHistory is what is remembered of one process's numbers.
type processHistory struct {
	floor uint64 // all numbers up to it count as ended; never falls
	// assumed, not above floor: the numbers up to it count as ended because of their
	// age only, so that a reservation with a lease may still be live.
	assumed uint64
	high    uint64 // highest number seen

	// The sets below hold numbers above floor. A number may be in several.

	ended     bitmap // ended, or naming no reservation
	removed   bitmap // lost with their rank
	completed bitmap // prefill complete
	// leaseExpired has the numbers whose lease ran out here, and those reported as ended
	// by a replica that may not know leases: a snapshot may bring them back.
	leaseExpired bitmap
	// leases has ends that are remembered beyond the window.
	leases endedLeases

	peer    string // the endpoint that speaks for the process
	counted int64  // its part of memory.used

	live      int           // reservations in the ledger
	lastHeard time.Duration // when something was last heard about the process
	// markedHigh was the highest number seen at markedAt. One retention later all numbers up
	// to it count as ended; see Forget.
	markedHigh uint64
	markedAt   time.Duration
	// leasesCheckedAt is when old ends were last dropped from leases.
	leasesCheckedAt time.Duration
}

func newProcessHistory(at time.Duration) *processHistory {
	return &processHistory{
		ended: make(bitmap), removed: make(bitmap), completed: make(bitmap), leaseExpired: make(bitmap),
		leases: make(endedLeases), markedAt: at, leasesCheckedAt: at,
	}
}

// NewNumbered returns an empty memory for the ledger of the process own.
func NewNumbered(own uint64) *Numbered {
	return &Numbered{own: own, retention: minRetention, byProcess: make(map[uint64]*processHistory)}
}

// SetLifetime sets how long a reservation without lease lives, instead of 300 s.
// It must be called before n is used.
func (n *Numbered) SetLifetime(d time.Duration) { n.retention = max(minRetention, 2*d) }

// Admit decides whether a reservation of another process may become live, and
// counts it as live if so. renewed: its lease is known to run. completed reports
// whether its prefill is known to be complete.
func (n *Numbered) Admit(o Origin, at time.Duration, renewed bool) (s Verdict, completed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.get(o.Process, at)
	switch {
	case x == nil:
		return NoRoom, false
	case x.refuses(o.Sequence, renewed):
		return HasEnded, false
	}
	x.see(o.Sequence)
	x.live++
	n.count(x)
	return MayLive, x.completed.has(o.Sequence)
}

// Leave records that a reservation which Admit has counted is no longer live.
func (n *Numbered) Leave(o Origin, why EndReason) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x := n.byProcess[o.Process]; x != nil { // else Unbind came between: live reservations keep it
		x.leave(o, why)
		n.count(x)
	}
}

func (p *processHistory) leave(o Origin, why EndReason) {
	p.live--
	p.see(o.Sequence)
	switch {
	case why == Freed:
		p.end(o.Sequence)
	case o.Sequence <= p.floor:
	case why == RankRemoved:
		p.removed.set(o.Sequence)
	case why == LeaseExpired:
		p.leaseExpired.set(o.Sequence)
	}
}

// Lease is what LeaveLeased needs to know about a reservation with a lease.
type Lease struct {
	// Accepted is when the reservation was accepted.
	Accepted time.Duration
	// Longest is how long any replica keeps it live after its last renewal.
	Longest     time.Duration
	PrefillDone bool
}

// LeaveLeased is Leave for a reservation with a lease. If other replicas may still have
// it live when its number has become too old for the window, its end is remembered
// separately.
func (n *Numbered) LeaveLeased(o Origin, why EndReason, l Lease, at time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byProcess[o.Process]
	if x == nil {
		return
	}
	defer n.count(x)
	x.leave(o, why) // under the same lock: a process without live reservations may be evicted
	if why == LeaseExpired {
		if l.PrefillDone && o.Sequence > x.floor { // it may come back from a replica that does not know that
			x.completed.set(o.Sequence)
		}
		return
	}
	keep := l.Longest + leaseMargin
	if at-l.Accepted+keep > n.retention-leaseMargin {
		x.leases.put(o.Sequence, endedLease{until: at + keep, report: why == Freed})
	}
}

// Missing returns the verdict on a reservation that another replica reports as renewed
// and that is not live here.
func (n *Numbered) Missing(o Origin) Verdict {
	if o.Process == n.own {
		return HasEnded
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch x := n.byProcess[o.Process]; {
	case x == nil && len(n.byProcess) >= MaxProcesses:
		return NoRoom
	case x != nil && x.leaseHasEnded(o.Sequence):
		return HasEnded
	}
	return MayLive
}

// Verdict is Admit without counting the reservation or changing anything. It does not
// return NoRoom.
func (n *Numbered) Verdict(o Origin, renewed bool) (s Verdict, completed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch x := n.byProcess[o.Process]; {
	case o.Process == n.own, x != nil && x.refuses(o.Sequence, renewed):
		return HasEnded, false
	case x == nil:
		return MayLive, false
	default:
		return MayLive, x.completed.has(o.Sequence)
	}
}

// Unbind forgets the numbers of a process, because it is no longer known who speaks for
// it. The caller must make sure that none of its reservations is counted as live.
func (n *Numbered) Unbind(process uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop(process)
}

// Bind records which endpoint speaks for a process from now on.
func (n *Numbered) Bind(process uint64, peer string, at time.Duration) {
	n.update(process, at, func(x *processHistory) { x.peer = peer })
}

// Skip records that a number names no reservation. Origins without a number are
// ignored.
func (n *Numbered) Skip(event Origin, at time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.skip(event, at)
}

// End records the end of a reservation, and that event names none. before reports
// that the reservation, if it is not live, had ended before. Origins without a number
// are ignored.
func (n *Numbered) End(o, event Origin, at time.Duration) (before bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.skip(event, at)
	x := n.getOther(o, at)
	if x == nil {
		return o.Process == n.own
	}
	before = x.hasEnded(o.Sequence)
	x.end(o.Sequence)
	n.count(x)
	return before
}

// Complete records the completed prefill of a reservation, and that event names none.
// ended reports that the reservation, if it is not live, has ended. Origins without a
// number are ignored.
func (n *Numbered) Complete(o, event Origin, at time.Duration) (ended bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.skip(event, at)
	x := n.getOther(o, at)
	switch {
	case x == nil:
		return o.Process == n.own
	case x.hasEnded(o.Sequence):
		return true
	}
	x.see(o.Sequence)
	x.completed.set(o.Sequence)
	n.count(x)
	return false
}

// skip records that a number names no reservation. It needs n.mu.
func (n *Numbered) skip(event Origin, at time.Duration) {
	if x := n.getOther(event, at); x != nil {
		x.end(event.Sequence)
		n.count(x)
	}
}

// Merge records what another replica reports as ended of one process; e must be
// normalized. Reports about the own process are ignored.
func (n *Numbered) Merge(process uint64, e EndedSet, at time.Duration) {
	if process == n.own {
		return
	}
	for part := range slices.Chunk(e.Ranges, mergePerLock) {
		n.update(process, at, func(x *processHistory) {
			for _, r := range part {
				x.mergeRange(r, e.Assumed)
			}
		})
	}
	for part := range slices.Chunk(firstOf(e.Leases, maxEndedLeases), mergePerLock) {
		n.update(process, at, func(x *processHistory) {
			for _, number := range part {
				x.endLease(number, at+n.retention)
			}
		})
	}
}

// update runs f on the history of a process, unless there is no room for one.
func (n *Numbered) update(process uint64, at time.Duration, f func(*processHistory)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x := n.get(process, at); x != nil {
		f(x)
		n.count(x)
	}
}

// Live returns how many reservations of another process are counted as live.
func (n *Numbered) Live(process uint64) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x := n.byProcess[process]; x != nil {
		return x.live
	}
	return 0
}

// Ended returns what has ended of the other processes, by process. If there are too many
// ranges, it returns only the first ones.
func (n *Numbered) Ended() map[uint64]EndedSet {
	n.mu.Lock()
	processes := make([]uint64, 0, len(n.byProcess))
	for process := range n.byProcess {
		processes = append(processes, process)
	}
	n.mu.Unlock()
	out := make(map[uint64]EndedSet, len(processes))
	for _, process := range processes {
		e, floor, ended := n.copyEnded(process)
		e.Ranges = ended.appendRanges(appendRange(nil, Range{1, floor}), floor, maxEndedRanges/len(processes))
		if len(e.Ranges) > 0 || len(e.Leases) > 0 {
			out[process] = e
		}
	}
	return out
}

// copyEnded returns what has ended of a process, with floor and ended in place of Ranges:
// the caller computes these without the lock.
func (n *Numbered) copyEnded(process uint64) (e EndedSet, floor uint64, ended bitmap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byProcess[process]
	if x == nil {
		return EndedSet{}, 0, nil
	}
	return EndedSet{Assumed: x.assumed, Leases: x.leases.ranges()}, x.floor, x.ended.clone()
}

// Forget makes numbers that are older than the retention count as ended. It is to be called
// about every second.
func (n *Numbered) Forget(at time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.byProcess {
		if at-x.markedAt >= n.retention {
			x.assume(x.markedHigh)
			x.markedHigh, x.markedAt = x.high, at
		}
		if at-x.leasesCheckedAt >= dropLeasesEvery {
			x.leases = x.leases.dropOld(at)
			x.leasesCheckedAt = at
		}
		n.count(x)
	}
}

// getOther is get for another process that numbers its reservations, else nil.
func (n *Numbered) getOther(o Origin, at time.Duration) *processHistory {
	if !o.Numbered() || o.Process == n.own {
		return nil
	}
	return n.get(o.Process, at)
}

// get returns the history of a process. If there are too many, a new one replaces the
// one without live reservations that was heard of longest ago; nil if there is none. It
// needs n.mu.
func (n *Numbered) get(process uint64, at time.Duration) *processHistory {
	x := n.byProcess[process]
	if x == nil {
		if len(n.byProcess) >= MaxProcesses && !n.evict() {
			return nil
		}
		x = newProcessHistory(at)
		n.byProcess[process] = x
	}
	x.lastHeard = at
	return x
}

func (n *Numbered) evict() bool {
	var victim uint64
	var oldest *processHistory
	for process, x := range n.byProcess {
		if x.live <= 0 && (oldest == nil || x.lastHeard < oldest.lastHeard) {
			victim, oldest = process, x
		}
	}
	if oldest == nil {
		return false
	}
	n.drop(victim)
	return true
}

// hasEnded reports whether the reservation of a number, without lease, has ended.
// The largest number never names a reservation, so that no sum below overflows.
func (p *processHistory) hasEnded(number uint64) bool {
	return number <= p.floor || number == math.MaxUint64 || p.ended.has(number)
}

// refuses reports whether the reservation of a number cannot become live. renewed: its
// lease is known to run.
func (p *processHistory) refuses(number uint64, renewed bool) bool {
	if renewed {
		return p.leaseHasEnded(number)
	}
	return p.hasEnded(number) || p.removed.has(number) || p.leaseExpired.has(number)
}

// leaseHasEnded is refuses for a reservation whose lease is known to run.
func (p *processHistory) leaseHasEnded(number uint64) bool {
	_, remembered := p.leases[number]
	return remembered || number > p.assumed && p.hasEnded(number) || p.removed.has(number)
}

func (p *processHistory) end(number uint64) { p.endRange(Range{number, number}) }

// mergeRange records a range as ended. Its numbers up to assumed may be those of
// reservations with a lease, which may still be live.
func (p *processHistory) mergeRange(r Range, assumed uint64) {
	if r.From <= assumed {
		guess := Range{r.From, min(r.To, assumed, math.MaxUint64-1)}
		p.see(guess.To)
		switch from := max(guess.From, p.floor+1); {
		case guess.From == 1:
			p.assume(guess.To)
		case from <= guess.To:
			p.leaseExpired.setRange(from, guess.To)
		}
		if r.To <= assumed {
			return
		}
		r.From = assumed + 1
	}
	p.endRange(r)
}

// endLease remembers the end of a long lease that another replica has reported. It is
// not reported further, because that replica continues to report it.
func (p *processHistory) endLease(number uint64, until time.Duration) {
	if _, known := p.leases[number]; !known {
		p.leases.put(number, endedLease{until: until})
	}
}

func (p *processHistory) endRange(r Range) {
	r.To = min(r.To, math.MaxUint64-1)
	p.see(r.To)
	switch from := max(r.From, p.floor+1); {
	case from > r.To:
	case from == p.floor+1:
		p.raiseFloor(r.To)
	default: // no wider than the window
		p.ended.setRange(from, r.To)
	}
}

// see moves the window so that number is in it.
func (p *processHistory) see(number uint64) {
	p.high = max(p.high, number)
	if p.high > Window {
		p.assume(p.high - Window)
	}
}

// assume makes all numbers up to that one count as ended, except those of reservations
// with a lease.
func (p *processHistory) assume(number uint64) {
	p.assumed = max(p.assumed, number)
	p.raiseFloor(number)
}

func (p *processHistory) raiseFloor(floor uint64) {
	if floor <= p.floor {
		return
	}
	old := p.floor
	p.floor = floor
	if (floor+1)>>pageShift != (old+1)>>pageShift {
		for _, b := range p.bitmaps() {
			b.prune(floor)
		}
	}
}
