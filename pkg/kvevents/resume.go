package kvevents

import (
	"math"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Checkpoint is the position of a rank's stream. With it a later process can find out
// whether the engine is still the same, and miss none of its messages: the blocks that
// the rank held at the checkpoint plus all messages after Last, applied in order, are
// the blocks that it holds now. Some of these messages may already have changed the
// blocks. Hence the blocks may be read after the checkpoint while events go on,
// provided that Subscribers.Unbroken reports true afterwards.
type Checkpoint struct {
	Endpoint string // of the publisher
	// Every number from Since to Last has been applied, and nothing above. Since <= Last.
	Since, Last uint64
	// Recent has fingerprints of messages, that of Last among them.
	Recent []Fingerprint
	// Salted and Groups are what the converter has learned from the stream.
	Salted bool
	Groups []GroupKind

	breaks uint64 // of the stream
}

// Fingerprint tells messages with the same number apart.
type Fingerprint struct {
	Number uint64
	Length int    // of the payload in bytes, at least 1
	Ends   []byte // the first and the last 32 bytes of it, 64 in all
}

// GroupKind says whether an attention group of a rank holds its main cache.
type GroupKind struct {
	DP    uint32
	Group int32
	Main  bool
}

// Resume lets a stream continue from a checkpoint of an earlier process. Once it is
// connected, the stream finds out whether the engine is still the same and still has
// everything after the checkpoint:
//
//   - With a replay endpoint, by a replay from the checkpoint's last number on: its
//     first message must have the fingerprint of that number.
//   - Without one, by the first live message, whose number must be the next one.
//
// If so, Restore is called once, before anything later is applied, by the goroutine
// that applies the stream. Otherwise Discard is called once, and the stream starts
// from scratch. A stream that ends before that calls neither.
type Resume struct {
	From             Checkpoint
	Restore, Discard func()
}

// resumption is the progress of a stream in resuming from a checkpoint.
type resumption uint8

const (
	// notResumed: the stream started from scratch, or no longer needs the checkpoint.
	notResumed resumption = iota
	// unproven: engineState is that of the checkpoint, but its blocks are not in the
	// index yet. No message has been applied.
	unproven
	// catchingUp: the checkpoint's blocks are in the index. No live message has been
	// applied yet, so that messages from before this connection may still turn out to
	// be lost; then the blocks are removed.
	catchingUp
)

// resume makes a new stream continue from a checkpoint.
func (s *stream) resume(c *Checkpoint) {
	s.resumed = unproven
	s.started, s.since, s.last = true, c.Since, c.Last
	s.unverifiedUpTo, s.lastLive = position{c.Last, true}, position{c.Last, true}
	s.fingerprints.restore(c.Recent, c.Last)
}

// replayFrom returns the first number of a replay of everything that is needed from the
// publisher.
func (s *stream) replayFrom() uint64 {
	if s.resumed == unproven {
		return s.last
	}
	return 0
}

// proveByReplay checks a replayed message while the stream is unproven, and reports
// whether it is now proven that the engine is the same. Then the message is handled
// like any other.
func (s *stream) proveByReplay(m message, now time.Time) bool {
	remembered, same := s.fingerprints.compare(m)
	switch {
	case m.seq == s.last && same:
		s.restore()
		return true
	case m.seq >= s.last || remembered && !same:
		s.refute(now)
	} // else a message from before, which was not asked for
	return false
}

// proveByLive checks the first live message while the stream is unproven. It proves the
// engine only if there is no replay endpoint; otherwise the checkpoint is given up.
func (s *stream) proveByLive(m message) {
	if !s.replayable && s.last < math.MaxUint64 && m.seq == s.last+1 {
		s.restore()
		return
	}
	s.discard()
}

// restore puts the blocks of the checkpoint into the index.
func (s *stream) restore() {
	s.resumed = catchingUp
	s.unverifiedUpTo = position{}
	s.output.restore()
}

// discard gives the checkpoint up: the stream starts from scratch.
func (s *stream) discard() {
	s.resumed = notResumed
	s.engineState = engineState{}
	s.replay.goal.from = 0
	s.output.discard()
}

// refute gives the checkpoint up because a replay has contradicted it, and asks for
// everything that the engine has.
func (s *stream) refute(now time.Time) {
	s.counters.ReplayResults[ReplayAborted].Add(1)
	s.becomeFollowing()
	s.discard()
	s.becomeAwaiting(goal{}, now)
}

// loseResumed removes the restored blocks, because messages that the engine sent before
// this connection are lost.
func (s *stream) loseResumed() {
	s.resumed = notResumed
	s.engineState = engineState{}
	s.breaks++
	s.output.clear()
}

// checkpoint returns the position of the stream. ok is false if the rank's blocks may be
// wrong because messages were lost, or while it is unknown whether the engine is the same.
func (s *stream) checkpoint() (c Checkpoint, ok bool) {
	switch {
	case !s.started, s.resumed == unproven, s.firstLost.ok, s.suspect != nil,
		s.replay.reachesBack, s.replay.goal.confirm,
		s.fingerprints.last.length == 0 || s.fingerprints.last.seq != s.last:
		return Checkpoint{}, false
	case s.unverifiedUpTo.ok && s.last > s.unverifiedUpTo.seq && s.replayable:
		return Checkpoint{}, false
	}
	return Checkpoint{Since: s.since, Last: s.last, Recent: s.fingerprints.all(), breaks: s.breaks}, true
}

// all returns all fingerprints, that of the newest message first.
func (f *fingerprints) all() []Fingerprint {
	var out []Fingerprint
	add := func(p *fingerprint) {
		if p.length > 0 {
			out = append(out, Fingerprint{p.seq, p.length, append(p.head[:], p.tail[:]...)})
		}
	}
	add(&f.last)
	add(&f.first)
	if o := f.between; o != nil {
		for i := range o.marks {
			add(&o.marks[i])
		}
		for i := range o.connections {
			add(&o.connections[i])
		}
	}
	return out
}

// restore takes over the fingerprints of a checkpoint; last is the number of its last
// message.
func (f *fingerprints) restore(recent []Fingerprint, last uint64) {
	for _, r := range recent {
		p := fingerprint{seq: r.Number, length: r.Length}
		if p.length <= 0 || p.seq > last || len(r.Ends) != len(p.head)+len(p.tail) {
			continue
		}
		copy(p.tail[:], r.Ends[copy(p.head[:], r.Ends):])
		if f.first.length == 0 || p.seq < f.first.seq {
			f.first = p
		}
		if p.seq == last {
			f.last = p
		}
		if p.seq%markStride == 0 {
			if old := &f.older().marks[p.seq/markStride%numMarks]; old.length == 0 || old.seq < p.seq {
				*old = p
			}
		}
	}
}

// restore and discard implement output for a stream that resumes from a checkpoint.
func (d *delivery) restore() {
	if a, ok := d.applier.(learner); ok {
		a.learn(d.resume.From.Salted, d.resume.From.Groups)
	}
	d.resume.Restore()
	d.resume = nil
}

func (d *delivery) discard() {
	d.resume.Discard()
	d.resume = nil
}

// learner is an Applier that learns from its stream how to read later messages. A
// checkpoint includes what it has learned.
type learner interface {
	learned() (salted bool, groups []GroupKind)
	learn(salted bool, groups []GroupKind)
}

var _ learner = (*IndexApplier)(nil)

func (a *IndexApplier) learned() (salted bool, groups []GroupKind) {
	for key, main := range a.Converter.groups.kinds {
		groups = append(groups, GroupKind{key.dp, key.group, main})
	}
	return a.Converter.salted, groups
}

func (a *IndexApplier) learn(salted bool, groups []GroupKind) {
	a.Converter.salted = a.Converter.salted || salted
	for _, g := range groups {
		if a.Converter.groups.kinds == nil {
			a.Converter.groups.kinds = make(map[groupKey]bool)
		}
		if len(a.Converter.groups.kinds) < maxGroups {
			a.Converter.groups.kinds[groupKey{g.DP, g.Group}] = g.Main
		}
	}
}

// checkpoint returns where the subscription's stream stands; ok is false also if
// batches have changed blocks of other ranks, or may have.
func (s *subscription) checkpoint() (c Checkpoint, ok bool) {
	s.turnMu.Lock()
	defer s.turnMu.Unlock()
	if s.delivery.mixed || s.following == nil {
		return Checkpoint{}, false
	}
	if c, ok = s.stream.checkpoint(); !ok {
		return Checkpoint{}, false
	}
	c.Endpoint = s.endpoint
	if a, has := s.delivery.applier.(learner); has {
		c.Salted, c.Groups = a.learned()
	}
	return c, true
}

// Checkpoints returns the positions of all streams whose position is exactly known. A
// worker is left out if one of its streams has brought batches for other ranks: then it
// is unknown on which stream's numbers the blocks depend.
func (s *Subscribers) Checkpoints() map[catalog.Rank]Checkpoint {
	points := make(map[catalog.Rank]Checkpoint)
	mixed := make(map[uint64]bool)
	for _, sub := range s.all() {
		c, ok := sub.checkpoint()
		if ok {
			points[sub.rank] = c
		}
		mixed[sub.rank.Worker] = mixed[sub.rank.Worker] || sub.isMixed()
	}
	for r := range points {
		if mixed[r.Worker] {
			delete(points, r)
		}
	}
	return points
}

// Unbroken reports whether the rank's blocks have been changed since the checkpoint
// by the messages that follow it only, in their order: no earlier message has been
// applied again, and none of another rank.
func (s *Subscribers) Unbroken(r catalog.Rank, c Checkpoint) bool {
	sub := s.find(r)
	if sub == nil {
		return false
	}
	sub.turnMu.Lock()
	defer sub.turnMu.Unlock()
	return !sub.delivery.mixed && sub.following != nil && sub.stream.breaks == c.breaks && sub.endpoint == c.Endpoint
}

func (s *subscription) isMixed() bool {
	s.turnMu.Lock()
	defer s.turnMu.Unlock()
	return s.delivery.mixed
}

// resume lets the stream continue from a checkpoint. It must be called before open.
func (s *subscription) resume(r *Resume) {
	s.turnMu.Lock()
	defer s.turnMu.Unlock()
	s.delivery.resume = r
	s.follow()
	s.stream.resume(&r.From)
}
