package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/pkg/catalog"
)

// Bucket is where the catalog is kept, see bus.Bucket.
type Bucket interface {
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	Put(ctx context.Context, key string, value []byte) error
	Replace(ctx context.Context, key string, value []byte, revision uint64) (now uint64, err error)
	Remove(ctx context.Context, keys ...string) error
	Keys(ctx context.Context, prefix string) ([]string, error)
}

// Fleet is who else has the catalog, see bus.Conn.
type Fleet interface {
	// SetCatalog announces the catalog's version and that of the settings in force, 0: none.
	SetCatalog(version, settings uint64)
	// Lagging names the live replicas that have not announced a version, and these settings.
	Lagging(version, settings uint64) []string
	// Phase says how far this replica is a part of the fleet.
	Phase() bus.Phase
}

// Config configures a Catalog.
type Config struct {
	Bucket  Bucket
	Fleet   Fleet
	Replica string // this replica's name
	// Cache is a file that keeps the last version for a start without NATS, "" for none.
	Cache string
	// Required: a start waits for the bucket, whatever the cache has.
	Required bool
	// Local is the catalog of this process, and Apply makes a set the workers of the API and of the
	// workers file in it. They are called after Run was. See Store.
	Local func() *catalog.Catalog
	Apply func(catalog.Set) (catalog.Difference, error)
	// Thresholds, if set, are the busy thresholds of this process, which are the fleet's then, and
	// Policies makes a section worker_selection of a policy file, as JSON, the policies of this
	// process; nil: its own. See SettingsStore.
	Thresholds *overload.Table
	Policies   func(section []byte) error
	Log        zerolog.Logger
}

// Errors of Edit, beside those of the change.
var (
	// ErrAway: the fleet's catalog cannot be written now. The change may have been made if the
	// connection was lost meanwhile.
	ErrAway = errors.New("the catalog of the fleet cannot be changed now")
	// ErrBusy: too many changes wait.
	ErrBusy = errors.New("too many changes of the fleet's catalog wait")
)

// Why the bucket cannot be written although it can be read.
var (
	errEmptied = fmt.Errorf("%w: its bucket has none that can be used, and the replica with the newest version has to fill it", ErrAway)
	errLower   = fmt.Errorf("%w: its bucket has an older version than this replica", ErrAway)
)

const (
	// pollEvery is how often the head is read although nobody has told of a newer one.
	pollEvery = 5 * time.Second
	// readEvery is the least time between two readings of the head for no change of this process's, whatever others say
	// that they have.
	readEvery = 20 * time.Millisecond
	// retryEvery is how long a change or a reading waits until it is tried again.
	retryEvery = 200 * time.Millisecond
	// editTime bounds the time of a change until it is in the bucket, which the first one of a fleet
	// begins before its replicas were heard; seenTime is how long others are then awaited.
	editTime, seenTime = 6 * time.Second, 3 * time.Second
	// contendedTime is how long changes are tried again at once because others are always first.
	contendedTime = time.Minute
	// requestsAtOnce bounds the shards that are read or written at a time.
	requestsAtOnce = 8
	// maxEdits bounds the changes that wait.
	maxEdits = 4096
	// startTime is how long a start waits for the bucket if it is not required.
	startTime = 5 * time.Second
	// sweepEvery is how long after its start, or after it has replaced a shard, a replica removes the shards that no
	// head names; until then others may be reading them. It does so earlier once it has left more than
	// maxReplaced.
	sweepEvery  = 30 * time.Second
	maxReplaced = 1024
	// lookEvery is how often it is looked for workers that have come to contradict each other.
	lookEvery = 200 * time.Millisecond
	// aheadTime is how long what others said of a newer version counts; they say it every second.
	aheadTime = 10 * time.Second
	// lowerTime is how long the bucket has a lower version than this process until that one counts:
	// it was read from a copy that was behind, or the servers have lost their latest state.
	lowerTime = 15 * time.Second
	// emptyTime is how long the bucket is empty until this process writes its version: others may have
	// a newer one, and say so every second. Whoever has it is waited for until lowerTime.
	emptyTime = 3 * time.Second
)

// edit is a change that waits.
type edit struct {
	change  Change
	look    bool                           // it changes nothing, so that it needs no bucket
	setting func(*settings.Settings) error // a change of the settings instead; nil: it is none
	file    string                         // digest of the file's set that it applies, "": it does not
	patient bool                           // it waits for NATS
	made    func()                         // nil: nobody asks
	until   time.Time
	done    chan error // capacity 1
	// attempts are the last maxIDs writes of it that were not answered. Each may still be made: in the place of
	// the revision that it was made for, and of no other.
	attempts []attempt
	version  uint64 // that has it, once done
	of       uint64 // version of the settings that have it then, 0: it changes none
}

// attempt is a write with an edit.
type attempt struct {
	id     string // of the state that was written
	result error  // of the edit
}

// bucketState is how the bucket stands to the catalog of this process.
type bucketState uint8

const (
	// unread: it was not read yet. Nothing is written.
	unread bucketState = iota
	// unused: it has no catalog, and no other replica is known to have one: the fleet is new.
	unused
	// inStep: it has the version that this process has.
	inStep
	// older: it has an older version. The copy that was read is behind, or the servers have lost their latest
	// state. Nothing is written. After lowerTime the older version counts.
	older
	// emptied: it has no version that can be used, though the fleet has one. The replica with the newest one
	// writes it, see Catalog.writable.
	emptied
)

// resting reports whether the bucket needs no other look until something is changed.
func (s bucketState) resting() bool { return s == unused || s == inStep }

// Catalog is the catalog that the replicas of a fleet share. All methods are safe for concurrent use.
type Catalog struct {
	config Config
	begin  time.Time
	wake   chan struct{} // capacity 1
	ended  chan struct{} // closed when Run has ended
	cache  chan *state   // capacity 1: the last state is to be cached

	commits, conflicts, failures atomic.Uint64

	// mu guards the fields below.
	mu     sync.Mutex
	edits  []*edit
	status Status
	seen   chan struct{} // closed, and replaced, when another replica tells its version
	again  bool          // the workers are to be applied again
	newest uint64        // the newest version that others have announced
	at     time.Time     // when that one was last announced
	// Only Run changes these, and reads them without mu.
	bucket bucketState
	since  time.Time // of bucket

	// Only Run uses these.
	now      *state
	shadow   *shadow
	turned   time.Time
	last     *state // that was applied last
	applied  time.Time
	against  []string  // of the records that were applied, see catalog.Catalog.Contradicted
	sweepAt  time.Time // when shards that no head names are removed, zero: there are none of this process
	replaced int       // shards that this process has left in the bucket since the last sweep
}

// State is whether the catalog of this process is the fleet's.
type State string

// The states of a catalog.
const (
	Waiting State = "waiting" // the bucket has not been read yet
	Cached  State = "cached"  // of the file: the bucket has not been read yet
	Current State = "current" // as in the bucket
	Stale   State = "stale"   // the bucket cannot be read now
)

// Status is what operators are shown of a catalog.
type Status struct {
	State   State  `json:"state"`
	Version uint64 `json:"version"`
	Workers int    `json:"workers"`
	// Settings is the version that had those shared settings first that are in force here; 0: there are none.
	Settings uint64 `json:"settings_version,omitempty"`
	Fault    string `json:"fault,omitempty"`
	// Refused has why workers of the fleet cannot be workers of this process, at most 16, and why its
	// policies cannot be this process's.
	Refused []string `json:"refused,omitempty"`
}

// New returns a catalog. Run must be called.
func New(config Config) *Catalog {
	return &Catalog{
		config: config, begin: time.Now(), wake: make(chan struct{}, 1), ended: make(chan struct{}), cache: make(chan *state, 1),
		seen: make(chan struct{}), now: new(state), last: new(state), status: Status{State: Waiting},
		sweepAt: time.Now().Add(sweepEvery),
	}
}

// NoteVersion notes that another replica has announced a version.
func (c *Catalog) NoteVersion(version uint64) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if version <= latest(c.status.Version) && (version >= c.newest || now.Sub(c.at) >= aheadTime) {
		c.newest, c.at = version, now
	}
	if version > c.status.Version {
		c.look()
	}
	close(c.seen)
	c.seen = make(chan struct{})
}

// ahead reports whether others have a newer version than this process, or had a moment ago.
func (c *Catalog) ahead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest > c.now.version && time.Since(c.at) < aheadTime
}

// enter notes a state of the bucket.
func (c *Catalog) enter(s bucketState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bucket != s {
		c.bucket, c.since = s, time.Now()
	}
}

// writable returns why nothing may be written into the bucket now. One without a catalog gets what this process
// has, or a change of that, once no other replica has more: who announces a newer version, and does not write it, is
// not waited for for ever.
func (c *Catalog) writable() error {
	joined, waited := c.config.Fleet.Phase() == bus.Settled, time.Since(c.since)
	switch {
	case c.bucket == unread:
		return ErrAway
	case c.bucket == older:
		return errLower
	case c.bucket == unused && !joined, c.bucket == emptied && (!joined || waited < emptyTime || c.ahead() && waited < lowerTime):
		return errEmptied
	}
	return nil
}

// Look applies the workers again: which of them contradict each other may have changed.
func (c *Catalog) Look() {
	c.mu.Lock()
	c.again = true
	c.mu.Unlock()
	c.look()
}

func (c *Catalog) look() {
	select {
	case c.wake <- struct{}{}:
	default: // it will
	}
}

// isRead reports whether the bucket was read once.
func (c *Catalog) isRead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bucket != unread
}

// Awaited reports whether a start still waits for the bucket.
func (c *Catalog) Awaited() bool {
	return !c.isRead() && (c.config.Required || time.Since(c.begin) < startTime)
}

// GivenUp reports whether a start waits no longer for the fleet, which cannot be reached.
func (c *Catalog) GivenUp() bool {
	return !c.config.Required && c.config.Fleet.Phase() == bus.Lost && time.Since(c.begin) >= startTime
}

// Settled reports whether the bucket was read, and every live replica has announced itself.
func (c *Catalog) Settled() bool { return c.isRead() && c.config.Fleet.Phase() == bus.Settled }

// Status returns the state of the catalog.
func (c *Catalog) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Edit makes a change of the fleet's catalog, and then waits until all live replicas have it, but not
// for long: behind names those that have not. Errors are those of the change, ErrAway, ErrBusy,
// catalog.ErrShuttingDown, and a *catalog.LimitError if the catalog would be too long.
func (c *Catalog) Edit(change Change) (behind []string, err error) {
	return c.wait(&edit{change: change, until: time.Now().Add(editTime)})
}

// Try is Edit for what changes nothing. It waits for nobody, and goes by what this process has of the fleet's
// catalog.
func (c *Catalog) Try(change Change) error {
	return c.await(&edit{change: change, look: true, until: time.Now().Add(editTime)})
}

// EditFile is Edit for the set of a workers file, with its digest. The set is not applied if it was the
// last one of a file that was: what was changed since then over the API stays. While the bucket cannot
// be reached EditFile waits.
func (c *Catalog) EditFile(digest string, change Change) (behind []string, err error) {
	return c.wait(&edit{change: change, file: digest, patient: true})
}

// EditSettings is Edit for the settings, where Config has them.
func (c *Catalog) EditSettings(change func(*settings.Settings) error) (behind []string, err error) {
	return c.wait(&edit{setting: change, until: time.Now().Add(editTime)})
}

// Submit is Edit that does not wait. It calls made once the change is in the bucket; a change that
// cannot be made is dropped.
func (c *Catalog) Submit(change Change, made func()) {
	_ = c.put(&edit{change: change, made: made, until: time.Now().Add(editTime)})
}

func (c *Catalog) put(e *edit) error {
	e.done = make(chan error, 1)
	c.mu.Lock()
	full := len(c.edits) >= maxEdits
	if !full {
		c.edits = append(c.edits, e)
	}
	c.mu.Unlock()
	if full {
		return ErrBusy
	}
	c.look()
	return nil
}

// await waits until a change is made.
func (c *Catalog) await(e *edit) error {
	if err := c.put(e); err != nil {
		return err
	}
	select {
	case err := <-e.done:
		return err
	case <-c.ended:
	}
	select {
	case err := <-e.done:
		return err
	default:
		return catalog.ErrShuttingDown
	}
}

// wait is await, and then waits until the others have it.
func (c *Catalog) wait(e *edit) (behind []string, err error) {
	if err := c.await(e); err != nil || e.version == 0 {
		return nil, err
	}
	late := time.NewTimer(seenTime)
	defer late.Stop()
	for {
		c.mu.Lock()
		seen := c.seen
		c.mu.Unlock()
		var joined <-chan time.Time // nil: the others are known
		if c.config.Fleet.Phase() == bus.Joining {
			joined = time.After(lookEvery)
		}
		if behind = c.config.Fleet.Lagging(e.version, e.of); len(behind) == 0 && joined == nil {
			return nil, nil
		}
		select {
		case <-seen:
		case <-joined:
		case <-late.C:
			return behind, nil
		case <-c.ended:
			return behind, nil
		}
	}
}

// Run follows the catalog and makes changes until ctx ends.
func (c *Catalog) Run(ctx context.Context) error {
	defer close(c.ended)
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() { c.writeCache(ctx) })
	c.loadCache()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-next.C:
		}
		next.Reset(c.turn(ctx))
	}
}

// turn reads the bucket if there is reason to, makes the changes that wait, and returns when to look
// again.
func (c *Catalog) turn(ctx context.Context) time.Duration {
	wait := pollEvery
	c.mu.Lock()
	edits, again := c.edits, c.again
	c.edits, c.again = nil, false
	c.mu.Unlock()
	if early := readEvery - time.Since(c.turned); early > 0 && len(edits) == 0 && !again {
		return early
	}
	c.turned = time.Now()
	if len(edits) == 0 || !c.bucket.resting() || c.ahead() {
		if err := c.follow(ctx); err != nil {
			c.fault(err)
			if _, bad := errors.AsType[*badShardError](err); !bad {
				wait = retryEvery
			}
		} else if c.ahead() || !c.bucket.resting() {
			wait = retryEvery // the copy that was read is behind
		}
	}
	if again {
		wait = min(wait, c.applyAgain())
	}
	if edits = c.answerWritten(edits); len(edits) > 0 || c.bucket == emptied && c.now.version > 0 && c.writable() == nil {
		if remaining := c.commit(ctx, edits); len(remaining) > 0 {
			c.mu.Lock()
			c.edits = append(remaining, c.edits...)
			c.mu.Unlock()
			wait = retryEvery
		} else if len(edits) > 0 {
			c.look() // for what others have changed meanwhile
		}
	}
	if !c.sweepAt.IsZero() && (time.Now().After(c.sweepAt) || c.replaced > maxReplaced) {
		c.sweep(ctx)
	}
	return wait
}

// follow makes the bucket's catalog that of this process. A head that no replica writes is taken for none: who
// has a catalog writes it again.
func (c *Catalog) follow(ctx context.Context) error {
	s, err := c.fetch(ctx)
	if err == nil {
		return c.take(s)
	}
	if bad, is := errors.AsType[*badHeadError](err); is && c.now.version > 0 && c.take(&state{revision: bad.revision}) == nil {
		return nil
	}
	return err
}

// take makes a state that was read from the bucket the catalog of this process. The error is
// errEmptied while the bucket is empty, but should not be.
func (c *Catalog) take(s *state) error {
	switch {
	case s.version == 0 && (c.now.version > 0 || c.ahead()):
		// The servers have lost the bucket, or it is new to them, or its head is none of the fleet's.
		if c.bucket != emptied && c.now.version > 0 {
			c.config.Log.Warn().Uint64("version", c.now.version).Msg("the bucket has no catalog of the fleet that can be used: the replica with the newest version writes it again")
		}
		if c.bucket != emptied || c.now.revision != s.revision {
			c.now = c.now.unwritten(s.revision)
		}
		c.enter(emptied)
		return c.writable()
	case s.version == 0:
		c.now = s
		c.enter(unused)
	case s.equal(c.now):
		c.now = s
		c.enter(inStep)
	case s.version < c.now.version && (c.bucket != unread || s.precedes(c.now)) && (c.bucket != older || time.Since(c.since) < lowerTime):
		c.enter(older)
		return nil // as if it had not been read
	default:
		if s.version < c.now.version {
			c.config.Log.Warn().Uint64("version", s.version).Uint64("had", c.now.version).Msg("the fleet's catalog is older than this replica's, and counts")
			c.mu.Lock()
			c.newest = s.version
			c.mu.Unlock()
		}
		c.now = s
		c.enter(inStep)
		c.apply(s)
		c.keep(s)
	}
	c.show(Current)
	return nil
}

// fetch reads the catalog from the bucket. It returns c.now if that is what the bucket has.
func (c *Catalog) fetch(ctx context.Context) (*state, error) {
	for {
		value, revision, err := c.config.Bucket.Get(ctx, headKey)
		if errors.Is(err, bus.ErrNoKey) {
			return new(state), nil
		}
		if err != nil {
			return nil, err
		}
		h, err := readHead(value, c.now.version)
		if err != nil {
			if errors.Is(err, errNotOurs) {
				err = &badHeadError{revision, err}
			}
			return nil, err
		}
		if revision == c.now.revision && slices.Equal(h.IDs, c.now.ids) {
			return c.now, nil
		}
		s, err := c.fetchShards(ctx, h, revision)
		if !errors.Is(err, bus.ErrNoKey) {
			return s, err
		}
		// The shards were replaced while they were read, so that there is another head.
		if err := pause(ctx, retryEvery); err != nil {
			return nil, err
		}
		_, now, err := c.config.Bucket.Get(ctx, headKey)
		if err == nil && now == revision {
			return nil, errors.New("the fleet's catalog lacks a shard")
		}
	}
}

// fetchShards reads those shards of a catalog that are not known.
func (c *Catalog) fetchShards(ctx context.Context, h *head, revision uint64) (*state, error) {
	s := &state{version: h.Version, ids: h.IDs, revision: revision, file: h.File, settings: h.Settings}
	reads, reading := errgroup.WithContext(ctx)
	reads.SetLimit(requestsAtOnce)
	var size atomic.Int64 // of all shards
	for n, key := range h.Shards {
		if key == "" {
			continue
		}
		if was := c.now.shards[n]; was != nil && was.key == key {
			s.shards[n] = was
			size.Add(int64(was.size))
			continue
		}
		reads.Go(func() error {
			if size.Load() > maxCatalog {
				return errLarge
			}
			value, _, err := c.config.Bucket.Get(reading, key)
			if err == nil {
				s.shards[n], err = unpack(n, key, value)
			}
			if err == nil {
				size.Add(int64(s.shards[n].size))
			}
			return err
		})
	}
	return s, reads.Wait()
}

// applyAgain applies the workers if others of them contradict each other than before. It returns when
// to look again.
func (c *Catalog) applyAgain() time.Duration {
	if wait := lookEvery - time.Since(c.applied); wait > 0 {
		c.mu.Lock()
		c.again = true
		c.mu.Unlock()
		return wait
	}
	c.applied = time.Now()
	local := c.config.Local()
	if against := local.Contradicted(c.now.records(local, c.last)); !slices.Equal(against, c.against) {
		c.apply(c.now)
	}
	return pollEvery
}

// apply makes the workers of a state those of this process, and tells the fleet.
func (c *Catalog) apply(s *state) {
	settings, fault := c.applySettings(s)
	local := c.config.Local()
	records := s.records(local, c.last)
	c.last, c.applied, c.against = s, time.Now(), local.Contradicted(records)
	for i, why := range c.against {
		if why != "" {
			records[i].Faults = append(slices.Clone(records[i].Faults), why)
		}
	}
	d, err := c.config.Apply(catalog.Set{Kind: catalog.SourceAPI, Records: records, Copied: true})
	if err != nil { // shutting down
		return
	}
	var refused []string
	if fault != nil {
		refused = append(refused, fmt.Sprintf("policies: %v", fault))
	}
	for _, e := range d.Excluded[:min(len(d.Excluded), 16)] {
		refused = append(refused, fmt.Sprintf("worker %d: %v", records[e.Index].ID, e.Err))
	}
	c.mu.Lock()
	same := len(refused) == len(c.status.Refused)
	c.status.Version, c.status.Workers, c.status.Refused, c.status.Settings = s.version, len(records), refused, settings
	c.mu.Unlock()
	if len(refused) > 0 && !same {
		c.config.Log.Error().Int("workers", len(d.Excluded)).Strs("reasons", refused).Msg("parts of the fleet's catalog cannot be used by this replica")
	}
	c.config.Fleet.SetCatalog(s.version, settings)
}

// applySettings makes the settings of a state those of this process, and returns the version of those that
// are in force then. The error says why its policies cannot be; those before stay.
func (c *Catalog) applySettings(s *state) (version uint64, fault error) {
	before, now := c.Status().Settings, s.shared()
	if c.config.Thresholds == nil || before == 0 && now.Version == 0 {
		return before, nil
	}
	if table := c.config.Thresholds; !now.sameThresholds(table.Own()) {
		table.Replace(now.Thresholds)
	}
	if err := c.config.Policies(now.Policies); err != nil {
		return before, err
	}
	if now.Version != before {
		c.config.Log.Info().Uint64("version", now.Version).Int("models", len(now.Thresholds)).Bool("policies", now.Policies != nil).
			Msg("busy thresholds and policies are those of the fleet")
	}
	return now.Version, nil
}

// answerWritten answers the changes that were written although the answer was lost, and returns the
// others.
func (c *Catalog) answerWritten(edits []*edit) (remaining []*edit) {
	for _, e := range edits {
		i := slices.IndexFunc(e.attempts, func(a attempt) bool { return slices.Contains(c.now.ids, a.id) })
		if i < 0 {
			remaining = append(remaining, e)
		} else {
			c.answer(e, e.attempts[i].result)
		}
	}
	return remaining
}

func (c *Catalog) answer(e *edit, result error) {
	if result == nil {
		e.version = c.now.version
		if e.setting != nil {
			e.of = c.now.shared().Version
		}
		if e.made != nil {
			e.made()
		}
	}
	e.done <- result
}

// commit makes changes, and writes what this process has into an empty bucket. Changes are answered when the
// bucket has what they were tried against or have led to: one that changes nothing, or fails, writes the head as it
// is, as another replica may have changed meanwhile what it was tried against. It returns those changes that have
// to be tried again later.
func (c *Catalog) commit(ctx context.Context, edits []*edit) (remaining []*edit) {
	began := time.Now()
	for {
		edits = c.answerApplied(edits)
		if err := c.writable(); err != nil {
			return c.postpone(edits, err)
		}
		unsure, results, next, err := c.tryAll(edits)
		if edits = unsure; len(edits) == 0 && (c.bucket != emptied || c.now.version == 0) {
			return nil
		}
		changed := err == nil && next.version != c.now.version
		if err == nil {
			err = c.write(ctx, next)
		}
		switch {
		case err == nil:
			c.now = next
			c.enter(inStep)
			c.shadow.settle(next)
			if changed {
				c.commits.Add(1)
				c.apply(next)
				c.keep(next)
			}
			c.show(Current)
			for i, e := range edits {
				c.answer(e, results[i])
			}
			return nil
		case ctx.Err() != nil:
			return edits // their callers see that Run has ended
		case errors.Is(err, bus.ErrRevision):
			c.conflicts.Add(1)
		case next == nil:
			return c.postpone(edits, err)
		case len(edits) > 0 && tooLong(err):
			c.shadow = nil
			if len(edits) == 1 {
				edits[0].done <- &catalog.LimitError{Limit: catalog.LimitText, Reason: err.Error()}
				return nil
			}
			for i := range edits { // one by one, so that others are made
				remaining = append(remaining, c.commit(ctx, edits[i:i+1])...)
			}
			return remaining
		default:
			c.failures.Add(1)
			if changed {
				for i, e := range edits {
					e.attempts = append(e.attempts[max(0, len(e.attempts)-maxIDs+1):], attempt{next.ids[0], results[i]})
				}
			}
		}
		c.shadow = nil // it has changes that are not made, or not yet
		base, failed := c.now, err
		if err = c.follow(ctx); err == nil {
			edits = c.answerWritten(edits)
			err = failed
		}
		switch conflict := errors.Is(err, bus.ErrRevision); {
		case len(edits) == 0:
			return nil
		case conflict && c.now != base && time.Since(began) < contendedTime:
			continue // on what the other one has left
		case !conflict:
			c.fault(err)
		}
		return c.postpone(edits, fmt.Errorf("%w: %w", ErrAway, err))
	}
}

// tooLong reports whether an error says that what was to be written has no room in the bucket, now or later.
func tooLong(err error) bool { return errors.Is(err, errLongShard) || errors.Is(err, bus.ErrTooLong) }

// postpone answers the changes that cannot wait with an error, and returns the others.
func (c *Catalog) postpone(edits []*edit, err error) (remaining []*edit) {
	up := c.config.Fleet.Phase() != bus.Lost
	for _, e := range edits {
		if e.patient || up && time.Now().Before(e.until) {
			remaining = append(remaining, e)
		} else {
			e.done <- err
		}
	}
	return remaining
}

// answerApplied answers those changes that are the set of a workers file which was applied last, and returns the
// others. So who starts without NATS has its workers file, if the copy of the catalog has it.
func (c *Catalog) answerApplied(edits []*edit) (remaining []*edit) {
	for _, e := range edits {
		if e.file != "" && e.file == c.now.file {
			e.done <- nil
		} else {
			remaining = append(remaining, e)
		}
	}
	return remaining
}

// tryAll makes changes to the shadow. It answers those that need no bucket, as they change nothing or can never be
// made, and returns the unsure others with their errors, and the state after them: of the same version if they
// change nothing.
func (c *Catalog) tryAll(edits []*edit) (unsure []*edit, results []error, next *state, err error) {
	c.shadow = newShadow(c.shadow, c.now, c.config.Local())
	file := c.now.file
	var set *settings.Settings // nil: unchanged
	for _, e := range edits {
		var err error
		switch {
		case e.setting != nil:
			if set == nil {
				set = &settings.Settings{Thresholds: c.config.Thresholds.Copy(), Policies: c.now.shared().Policies}
				set.Thresholds.Replace(c.now.shared().Thresholds)
			}
			err = e.setting(set)
		case e.file == "" || e.file != file:
			err = c.shadow.try(e.change)
		}
		if _, never := errors.AsType[*catalog.InvalidError](err); never || e.look {
			e.done <- err
			continue
		}
		if err == nil && e.file != "" {
			file = e.file
		}
		unsure, results = append(unsure, e), append(results, err)
	}
	if next, err = c.shadow.next(); err != nil {
		return unsure, nil, nil, err
	}
	next.file = file
	if set != nil {
		if changed := (sharedSettings{next.version, set.Thresholds.Own(), set.Policies}); !changed.same(c.now.shared()) {
			next.settings = &changed
		}
	}
	if next.same(c.now) && c.bucket == inStep { // one without a catalog gets a new version in any case
		next = new(*c.now)
	}
	return unsure, results, next, nil
}

// write puts a state into the bucket, in the place of c.now. The error is bus.ErrRevision if another
// replica was first.
func (c *Catalog) write(ctx context.Context, next *state) error {
	now := time.Now().UTC()
	h := head{Format: format, Version: next.version, IDs: next.ids, Replica: c.config.Replica, Time: now, File: next.file, Settings: next.settings}
	puts, putting := errgroup.WithContext(ctx)
	puts.SetLimit(requestsAtOnce)
	for n, p := range next.shards {
		if was := c.now.shards[n]; was != nil && was != p || p != nil && p.key == "" {
			c.leaves()
		}
		if p == nil {
			continue
		}
		if p.key == "" {
			p = &shard{key: newKey(), of: p.of}
			next.shards[n] = p
			puts.Go(func() error {
				value, err := p.pack()
				if err != nil {
					return err
				}
				return c.config.Bucket.Put(putting, p.key, value)
			})
		}
		h.Shards[n] = p.key
	}
	if err := puts.Wait(); err != nil {
		return err
	}
	value, err := json.Marshal(&h)
	if err != nil {
		return err
	}
	next.revision, err = c.config.Bucket.Replace(ctx, headKey, value, c.now.revision)
	return err
}

// leaves notes that this process is about to leave a shard in the bucket that no head names: one that it replaces,
// or one that it writes, if the head is not written then.
func (c *Catalog) leaves() {
	if c.replaced++; c.sweepAt.IsZero() {
		c.sweepAt = time.Now().Add(sweepEvery)
	}
}

// sweep removes the shards that no head names. Between listing the shards and removing them it writes the head as it
// is, with a new revision. A shard of the list that this head does not name will then be named by none: who has
// written the shard for a head to come has begun with an earlier revision, and cannot write that head any more.
func (c *Catalog) sweep(ctx context.Context) {
	c.sweepAt = time.Now().Add(sweepEvery) // if this one fails
	c.replaced = 0
	if c.bucket != inStep {
		return
	}
	keys, err := c.config.Bucket.Keys(ctx, shardPrefix)
	if err != nil {
		return
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return !isShard(key) || c.now.names(key) })
	if len(keys) > 0 {
		next := new(*c.now)
		if c.write(ctx, next) != nil {
			return
		}
		c.now = next
	}
	removes, removing := errgroup.WithContext(ctx)
	removes.SetLimit(requestsAtOnce)
	for _, key := range keys {
		removes.Go(func() error { return c.config.Bucket.Remove(removing, key) })
	}
	if removes.Wait() == nil {
		c.sweepAt = time.Time{}
	}
}

// fault shows that the bucket cannot be used.
func (c *Catalog) fault(err error) {
	reached := c.config.Fleet.Phase() != bus.Lost
	c.mu.Lock()
	defer c.mu.Unlock()
	if reached && c.status.Fault != err.Error() {
		c.config.Log.Warn().Err(err).Msg("the fleet's catalog cannot be reached; workers stay as they are")
	}
	c.status.Fault = err.Error()
	if c.status.State == Current {
		c.status.State = Stale
	}
}

// show shows a state without a fault.
func (c *Catalog) show(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.State, c.status.Fault = s, ""
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
