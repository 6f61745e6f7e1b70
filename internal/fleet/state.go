package fleet

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// format is the version of what is in the bucket.
	format = 1
	// numShards is the number of shards of a catalog.
	numShards = 64
	// maxShard bounds the text of a shard, in bytes: twice the longest request body, which can be one
	// worker. With 1.6 KB, those of a worker with 8 ranks, it has 10,000 workers, and the catalog 670,000.
	// maxShardWorkers bounds its workers, so that small ones do not take far more memory than their
	// text, and maxCatalog the text of all shards.
	maxShard        = 16 << 20
	maxShardWorkers = 1 << 14
	maxCatalog      = 16 * maxShard
	// maxIDs bounds the writes that a head names.
	maxIDs = 32
	// maxVersion and maxJump bound the version of a head: what this process can have without knowing a version
	// before, and how far it can be beyond the one that this process has. Each change adds one: at a thousand changes
	// a second, maxJump is a silence of 49 days.
	maxVersion, maxJump = 1 << 62, 1 << 32
	// headKey is the key of the head, and shardPrefix and a point begin the keys of shards, as in the first release.
	headKey, shardPrefix = "head", "part"
)

// head is the value of the key head.
type head struct {
	Format  int    `json:"format"`
	Version uint64 `json:"version"` // of the catalog, from 1
	// IDs names this write of the head and, latest first, some before it: who got no answer sees
	// there whether it has written.
	IDs     []string  `json:"ids"`
	Replica string    `json:"replica"` // which has written it
	Time    time.Time `json:"time"`
	// File is the digest of the last set of a workers file that was applied.
	File string `json:"file,omitempty"`
	// Settings are what else the replicas share; nil: nothing yet.
	Settings *sharedSettings `json:"settings,omitempty"`
	// Shards has the keys of the shards, "" for one without workers.
	Shards [numShards]string `json:"parts"`
}

// sharedSettings are what the replicas share beside workers. They never change.
type sharedSettings struct {
	Version    uint64                          `json:"version"`            // of the catalog that had them first
	Thresholds map[string]*overload.Thresholds `json:"thresholds"`         // of models that have not the defaults
	Policies   json.RawMessage                 `json:"policies,omitempty"` // see settings.Settings
}

// same reports whether both say the same, whatever their versions are.
func (s sharedSettings) same(o sharedSettings) bool {
	return s.sameThresholds(o.Thresholds) && bytes.Equal(s.Policies, o.Policies)
}

func (s sharedSettings) sameThresholds(own map[string]*overload.Thresholds) bool {
	return maps.EqualFunc(s.Thresholds, own, (*overload.Thresholds).Equal)
}

// check returns an error if the settings, which may be nil, cannot be used.
func (s *sharedSettings) check() error {
	if s == nil {
		return nil
	}
	for _, t := range s.Thresholds {
		if t == nil {
			return errNoLimits
		}
	}
	return nil
}

var (
	errFormat = errors.New("a newer release has written the catalog of the fleet: upgrade this replica")
	// errNotOurs: no replica writes such a head, whatever its release is.
	errNotOurs   = errors.New("no replica has written it")
	errNoVersion = fmt.Errorf("%w: it has no version", errNotOurs)
	errWrongKey  = fmt.Errorf("%w: it names a shard that is none", errNotOurs)
	errNoWorker  = errors.New("null instead of a worker")
	errNoLimits  = errors.New("null instead of a model's thresholds")
)

// badHeadError says why the head with a revision cannot be that of the catalog.
type badHeadError struct {
	revision uint64
	err      error
}

func (e *badHeadError) Error() string { return e.err.Error() }
func (e *badHeadError) Unwrap() error { return e.err }

// readHead reads a head. had is the version that this process has, 0: none.
func readHead(value []byte, had uint64) (*head, error) {
	h := new(head)
	err := json.Unmarshal(value, h)
	if err == nil {
		err = h.check(had)
	}
	if err != nil && !errors.Is(err, errFormat) {
		err = fmt.Errorf("head of the catalog: %w; remove the key head of the bucket, so that a replica writes it again", err)
	}
	return h, err
}

func (h *head) check(had uint64) error {
	switch {
	case h.Format > format:
		return errFormat
	case h.Version == 0:
		return errNoVersion
	case h.Version > latest(had):
		return fmt.Errorf("%w: version %d, where this replica has %d", errNotOurs, h.Version, had)
	case slices.ContainsFunc(h.Shards[:], func(key string) bool { return key != "" && !isShard(key) }):
		return errWrongKey
	}
	return h.Settings.check()
}

// latest returns the latest version that the catalog can have come to since it had one, 0: none.
func latest(had uint64) uint64 {
	if had == 0 {
		return maxVersion
	}
	return had + maxJump
}

// entry is one worker of the catalog.
type entry struct {
	// Created is the version of the catalog since which the worker has its scope, block size and
	// eagle flag. Of workers that contradict each other the one that was first counts.
	Created uint64          `json:"created"`
	Record  json.RawMessage `json:"record"` // a catalog.Record, perhaps with members of a newer release

	record catalog.Record
}

// shardOf returns the number of the shard that has a worker.
func shardOf(id uint64) int {
	const golden = 0x9e3779b97f4a7c15
	return int(id * golden >> 58)
}

// shard is the workers of a shard, by id.
type shard struct {
	key  string // "" before it is in the bucket
	size int    // of its text in bytes, once it is there
	of   []*entry
}

var (
	errLongShard  = fmt.Errorf("a shard of the catalog has at most %d workers and %d MiB", maxShardWorkers, maxShard>>20)
	errLarge      = fmt.Errorf("the catalog has at most %d MiB", maxCatalog>>20)
	errWrongShard = errors.New("not the workers of this shard, by id")
)

// pack returns the value of a shard, and sets its size.
func (s *shard) pack() ([]byte, error) {
	text, err := json.Marshal(s.of)
	if err != nil {
		return nil, err
	}
	if s.size = len(text); s.size > maxShard || len(s.of) > maxShardWorkers {
		return nil, errLongShard
	}
	return zip(text)
}

// badShardError says why a shard cannot be read, however often that is tried.
type badShardError struct {
	key string
	err error
}

func (e *badShardError) Error() string { return e.key + ": " + e.err.Error() }
func (e *badShardError) Unwrap() error { return e.err }

// unpack reads the value of shard n.
func unpack(n int, key string, value []byte) (*shard, error) {
	text, err := unzip(value, maxShard)
	if err != nil {
		return nil, &badShardError{key, err}
	}
	p := &shard{key: key, size: len(text)}
	if p.of, err = readEntries(n, text); err != nil {
		return nil, &badShardError{key, err}
	}
	return p, nil
}

// readEntries reads the text of shard n. It stops at the first entry that cannot be there.
func readEntries(n int, text []byte) (list []*entry, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') {
		return nil, errWrongShard
	}
	for d.More() {
		e := new(entry)
		if err := d.Decode(e); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(e.Record, &e.record); err != nil {
			return nil, err
		}
		id := e.record.ID
		switch {
		case len(list) == maxShardWorkers:
			return nil, errLongShard
		case shardOf(id) != n, len(list) > 0 && id <= list[len(list)-1].record.ID:
			return nil, errWrongShard
		}
		list = append(list, e)
	}
	_, err = d.Token() // ]
	return list, err
}

func zip(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(text); err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}

// unzip reads what zip has written, if that are at most so many bytes.
func unzip(value []byte, most int) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(value))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("longer than %d MiB", most>>20)
	}
	return text, err
}

// newKey returns a key for a shard.
func newKey() string { return shardPrefix + "." + rand.Text() }

// isShard reports whether a key can be that of a shard.
func isShard(key string) bool {
	name, is := strings.CutPrefix(key, shardPrefix+".")
	return is && name != "" && !strings.ContainsFunc(name, func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') })
}

// state is one version of the catalog. It never changes.
type state struct {
	version  uint64
	ids      []string
	revision uint64 // of the head in the bucket, 0: it is not there
	file     string
	settings *sharedSettings   // nil: none
	shards   [numShards]*shard // nil: without workers
}

// entries lists the workers in the order in which they were created.
func (s *state) entries() (list []*entry) {
	for _, p := range s.shards {
		if p != nil {
			list = append(list, p.of...)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.record.ID, b.record.ID))
	})
	return list
}

// records returns the workers as a set that other catalogs copy. local is what this process has, and last the state
// that it has from: where a worker was not registered again since, what its engine has said to this process
// counts.
func (s *state) records(local *catalog.Catalog, last *state) []catalog.Record {
	list := s.entries()
	known := make(map[uint64]struct{})
	for _, w := range local.Registered() {
		known[w.ID] = struct{}{}
	}
	records := make([]catalog.Record, len(list))
	for i, e := range list {
		records[i] = e.record
		if _, is := known[e.record.ID]; is && !e.renews(last.find(e.record.ID)) {
			records[i] = e.record.Untold()
		}
	}
	return records
}

// renews reports whether the worker was registered again since an earlier entry, nil: it had none.
func (e *entry) renews(was *entry) bool {
	return was == nil || e.record.Another(&was.record) || !e.record.ToldSame(&was.record)
}

// find returns the worker with an id, nil if there is none.
func (s *state) find(id uint64) *entry {
	p := s.shards[shardOf(id)]
	if p == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(p.of, id, func(e *entry, id uint64) int { return cmp.Compare(e.record.ID, id) })
	if !found {
		return nil
	}
	return p.of[i]
}

// unwritten returns the state as one of which the bucket has nothing but, perhaps, a head with a revision that is
// none of the fleet's.
func (s *state) unwritten(revision uint64) *state {
	u := *s
	u.revision = revision
	for n, p := range s.shards {
		if p != nil {
			u.shards[n] = &shard{of: p.of}
		}
	}
	return &u
}

// names reports whether the head of the state names a shard.
func (s *state) names(key string) bool {
	return slices.ContainsFunc(s.shards[:], func(p *shard) bool { return p != nil && p.key == key })
}

// precedes reports whether o was made from s, as far as is known: a bucket that has s then is behind, or has
// lost something.
func (s *state) precedes(o *state) bool { return len(s.ids) > 0 && slices.Contains(o.ids, s.ids[0]) }

// successor returns the next version of the catalog, without workers.
func (s *state) successor() *state {
	ids := append([]string{rand.Text()}, s.ids[:min(len(s.ids), maxIDs-1)]...)
	return &state{version: s.version + 1, ids: ids, revision: s.revision, file: s.file, settings: s.settings}
}

// fill gives a state its workers. The shards of was that have the same are kept; others have no key yet.
func (s *state) fill(entries []*entry, was *state) {
	var shards [numShards][]*entry
	for _, e := range entries {
		n := shardOf(e.record.ID)
		shards[n] = append(shards[n], e)
	}
	for n, of := range shards {
		slices.SortFunc(of, func(a, b *entry) int { return cmp.Compare(a.record.ID, b.record.ID) })
		old := was.shards[n]
		switch {
		case old != nil && slices.Equal(old.of, of):
			s.shards[n] = old
		case len(of) > 0:
			s.shards[n] = &shard{of: of}
		}
	}
}

// entryOf returns the entry of a worker in a version: was, which may be nil, if nothing has changed.
func (s *state) entryOf(w *catalog.Worker, was *entry) (*entry, error) {
	r := w.Record
	r.Registration = s.version
	if was != nil {
		r.Registration = was.record.Registration
	}
	text, err := json.Marshal(&r)
	if err != nil {
		return nil, err
	}
	e := &entry{Created: s.version, Record: text, record: r}
	switch {
	case was == nil:
	case was.text() == string(text):
		return was, nil
	case was.record.SameShape(&w.Record):
		e.Created = was.Created
	}
	return e, nil
}

// text returns the record as this release writes it.
func (e *entry) text() string {
	text, err := json.Marshal(&e.record)
	if err != nil {
		return ""
	}
	return string(text)
}

// same reports whether both have the same workers and settings.
func (s *state) same(o *state) bool {
	return s.shards == o.shards && s.file == o.file && s.settings == o.settings
}

// equal reports whether both are the same version, whatever their revisions are.
func (s *state) equal(o *state) bool {
	return s.version == o.version && slices.Equal(s.ids, o.ids) && s.shards == o.shards && s.file == o.file &&
		s.shared().Version == o.shared().Version && s.shared().same(o.shared())
}

// shared returns what the replicas share beside workers.
func (s *state) shared() sharedSettings {
	if s.settings == nil {
		return sharedSettings{}
	}
	return *s.settings
}
