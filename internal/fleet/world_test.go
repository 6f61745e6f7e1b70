package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/checks/e2e"
)

// memory is a bucket in memory, and the fleet of those who use it.
type memory struct {
	mu       sync.Mutex // guards the fields below
	values   map[string][]byte
	revision map[string]uint64
	last     uint64
	away     bool
	unmet    bool // not every replica has announced itself yet
	// replace, if set, is called before and after the head is replaced; an error is the answer.
	replace func(after bool) error
	// most, if not 0, is the longest value in bytes.
	most int
	// lose, if set, has a head not written and not answered if it says so.
	lose     func(value []byte) bool
	replicas []*testReplica
	foreign  bool // something was removed that is no shard
	// torn is a key that the head names and the bucket has not, "" for none.
	torn string
}

// cuttable is what a replica reaches of a bucket.
type cuttable struct {
	*memory
	cut  atomic.Bool // it reaches nothing
	gets atomic.Int64
	// frozen, if set, is what is read as the head: the server is behind, or has lost the others. It takes nothing.
	frozen atomic.Pointer[[]byte]
	// delay, if set, is called before each access of a key.
	delay func(access, key string)
}

func (c *cuttable) delayed(access, key string) {
	if c.delay != nil {
		c.delay(access, key)
	}
}

func (c *cuttable) freeze() {
	c.locked(func() { c.frozen.Store(new(c.values[headKey])) })
}

func (c *cuttable) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	c.gets.Add(1)
	c.delayed("get", key)
	if c.cut.Load() {
		return nil, 0, errNoAnswer
	}
	value, revision, err := c.memory.Get(ctx, key)
	if old := c.frozen.Load(); old != nil && key == headKey {
		value = *old
	}
	return value, revision, err
}

func (c *cuttable) Put(ctx context.Context, key string, value []byte) error {
	c.delayed("put", key)
	if c.cut.Load() || c.frozen.Load() != nil {
		return errNoAnswer
	}
	return c.memory.Put(ctx, key, value)
}

func (c *cuttable) Replace(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	c.delayed("replace", key)
	if c.cut.Load() || c.frozen.Load() != nil {
		return 0, errNoAnswer
	}
	return c.memory.Replace(ctx, key, value, revision)
}

func newMemory() *memory {
	return &memory{values: make(map[string][]byte), revision: make(map[string]uint64)}
}

var errNoAnswer = errors.New("no answer")

func (m *memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.away:
		return nil, 0, errNoAnswer
	case m.values[key] == nil:
		return nil, 0, bus.ErrNoKey
	}
	return m.values[key], m.revision[key], nil
}

func (m *memory) Put(_ context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return errNoAnswer
	}
	if m.most > 0 && len(value) > m.most {
		return bus.ErrTooLong
	}
	m.set(key, value)
	return nil
}

func (m *memory) set(key string, value []byte) {
	m.last++
	m.values[key], m.revision[key] = value, m.last
}

func (m *memory) Replace(_ context.Context, key string, value []byte, revision uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return 0, errNoAnswer
	}
	if m.replace != nil {
		if err := m.replace(false); err != nil {
			return 0, err
		}
	}
	if m.revision[key] != revision {
		return 0, bus.ErrRevision
	}
	if m.lose != nil && m.lose(value) {
		return 0, errNoAnswer
	}
	m.set(key, value)
	m.checkHead()
	if m.replace != nil {
		if err := m.replace(true); err != nil {
			return 0, err
		}
	}
	return m.last, nil
}

func (m *memory) Remove(_ context.Context, keys ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.foreign = m.foreign || !isShard(key)
		delete(m.values, key)
		delete(m.revision, key)
	}
	m.checkHead()
	return nil
}

// checkHead notes a shard that the head names and the bucket has not.
func (m *memory) checkHead() {
	var h head
	if json.Unmarshal(m.values[headKey], &h) != nil {
		return // of a test
	}
	for _, key := range h.Shards {
		if key != "" && m.values[key] == nil {
			m.torn = key
		}
	}
}

func (m *memory) Keys(_ context.Context, prefix string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.values)), func(key string) bool { return !strings.HasPrefix(key, prefix+".") }), nil
}

func (m *memory) locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// member is a replica's view of the fleet.
type member struct {
	*memory
	name string
}

func (m member) Phase() bus.Phase {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.away:
		return bus.Lost
	case m.unmet:
		return bus.Joining
	}
	return bus.Settled
}

func (m member) SetCatalog(version, settings uint64) {
	m.mu.Lock()
	all := slices.Clone(m.replicas)
	for _, r := range all {
		if r.name == m.name {
			r.version, r.settings = version, settings
		}
	}
	m.mu.Unlock()
	for _, r := range all {
		if r.name != m.name {
			r.NoteVersion(version)
		}
	}
}

func (m member) Lagging(version, settings uint64) (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.replicas {
		if r.name != m.name && (r.version < version || r.settings < settings) {
			names = append(names, r.name)
		}
	}
	return names
}

// testReplica is a replica with a catalog of its own.
type testReplica struct {
	*Catalog
	name  string
	local *catalog.Catalog
	// The versions that it has said, guarded by memory.mu.
	version, settings uint64
	stop              func()
	// applied, if set, is called after a set was applied.
	applied func()
}

// start starts a replica with a bucket.
func start(t testing.TB, config Config, local *catalog.Catalog, joined func(*testReplica)) *testReplica {
	t.Helper()
	if local == nil {
		local = catalog.New(catalog.Settings{}, quiet{})
	}
	r := &testReplica{name: config.Replica, local: local}
	config.Local = func() *catalog.Catalog { return local }
	config.Apply = func(s catalog.Set) (catalog.Difference, error) {
		d, err := local.Reconcile(s)
		if r.applied != nil {
			r.applied()
		}
		return d, err
	}
	config.Log = zerolog.Nop()
	r.Catalog = New(config)
	joined(r)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// join starts a replica of a fleet in memory.
func (m *memory) join(t testing.TB, name string, change ...func(*Config)) *testReplica {
	t.Helper()
	config := Config{Bucket: &cuttable{memory: m}, Fleet: member{m, name}, Replica: name}
	for _, f := range change {
		f(&config)
	}
	t.Cleanup(func() {
		m.locked(func() {
			if m.torn != "" {
				t.Errorf("the head has named %s, which was not in the bucket", m.torn)
			}
		})
	})
	return start(t, config, nil, func(r *testReplica) { m.locked(func() { m.replicas = append(m.replicas, r) }) })
}

// leave removes a replica as one that is no longer heard.
func (m *memory) leave(r *testReplica) {
	r.stop()
	m.locked(func() { m.replicas = slices.DeleteFunc(m.replicas, func(o *testReplica) bool { return o == r }) })
}

type quiet struct{}

func (quiet) Reconcile(_, _ *catalog.Attachment) error                { return nil }
func (quiet) ReserveSlot(catalog.Scope, uint32, catalog.Rank, uint32) {}
func (quiet) ReleaseSlot(catalog.Scope, catalog.Rank, uint32)         {}

// losing notes whose attachments are lost.
type losing struct {
	quiet
	lost *[]uint64
}

func (l losing) Reconcile(before, after *catalog.Attachment) error {
	if after == nil {
		*l.lost = append(*l.lost, before.Worker)
	}
	return nil
}

func worker(id uint64, change ...func(*catalog.Record)) catalog.Record {
	r := catalog.Record{ID: id, Scope: catalog.Scope{Model: "m", Tenant: "t"}, Endpoint: new(fmt.Sprintf("http://w%d", id)), BlockSize: new(uint32(16))}
	for _, f := range change {
		f(&r)
	}
	return r
}

func blockSize(n uint32) func(*catalog.Record) {
	return func(r *catalog.Record) { r.BlockSize = &n }
}

func put(r catalog.Record) Change {
	return func(c *catalog.Catalog) error {
		_, err := c.Put(r)
		return err
	}
}

// lists returns what a replica has, a line for a worker.
func (r *testReplica) lists() string {
	var b strings.Builder
	for _, w := range r.local.List(nil, nil) {
		fmt.Fprintf(&b, "%d %s %d %v %v %q %v\n", w.ID, *w.Endpoint, *w.BlockSize, w.Lifecycle, w.Source.KindOrAPI(), w.Taints, w.Explain())
	}
	return b.String()
}

var errNotYet = errors.New("not yet")

// awaits fails the test if a condition does not come true.
func awaits(t testing.TB, what string, is func() bool) {
	t.Helper()
	e2e.Eventually(t, what, func() error {
		if is() {
			return nil
		}
		return errNotYet
	})
}

// agree waits until all replicas have the same workers.
func agree(t testing.TB, replicas ...*testReplica) {
	t.Helper()
	awaits(t, "all replicas have the same workers", func() bool {
		for _, r := range replicas {
			if st := r.Status(); st.Version != replicas[0].Status().Version || st.State != Current {
				return false
			}
		}
		return true
	})
	for _, r := range replicas[1:] {
		if got, want := r.lists(), replicas[0].lists(); got != want {
			t.Errorf("%s has\n%s\nand %s\n%s", r.name, got, replicas[0].name, want)
		}
	}
}
