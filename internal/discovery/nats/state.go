package nats

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
	"time"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// format is the version of what is in the bucket.
	format = 1
	// numParts is the number of parts of a catalog.
	numParts = 64
	// maxPart bounds the text of a part, in bytes: twice the longest request body, which can be one
	// worker. With 1.6 KB, those of a worker with 8 ranks, it has 10,000 workers, and the catalog 670,000.
	// maxPartWorkers bounds its workers, so that small ones do not take far more memory than their
	// text, and maxCatalog the text of all parts.
	maxPart        = 16 << 20
	maxPartWorkers = 1 << 14
	maxCatalog     = 16 * maxPart
	// maxIDs bounds the writes that a head names.
	maxIDs = 32
	// headKey is the key of the head, and partPrefix and a point begin the keys of parts.
	headKey, partPrefix = "head", "part"
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
	Settings *settings `json:"settings,omitempty"`
	// Parts has the keys of the parts, "" for one without workers.
	Parts [numParts]string `json:"parts"`
	// Old are parts of heads before, to be removed.
	Old []oldPart `json:"old,omitempty"`
}

// settings are what the replicas share beside workers. They never change.
type settings struct {
	Version    uint64                          `json:"version"`            // of the catalog that had them first
	Thresholds map[string]*overload.Thresholds `json:"thresholds"`         // of models that have not the defaults
	Policies   json.RawMessage                 `json:"policies,omitempty"` // see Settings.Policies
}

// same reports whether both say the same, whatever their versions are.
func (s settings) same(o settings) bool {
	return s.sameThresholds(o.Thresholds) && bytes.Equal(s.Policies, o.Policies)
}

func (s settings) sameThresholds(own map[string]*overload.Thresholds) bool {
	return maps.EqualFunc(s.Thresholds, own, (*overload.Thresholds).Equal)
}

// check returns an error if the settings, which may be nil, cannot be used.
func (s *settings) check() error {
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

type oldPart struct {
	Key   string    `json:"key"`
	Since time.Time `json:"since"`
}

var (
	errFormat    = errors.New("a newer release has written the catalog of the fleet: upgrade this replica")
	errNoVersion = errors.New("head of the catalog: it has no version; remove the key head of the bucket, so that a replica writes it again")
	errNoWorker  = errors.New("null instead of a worker")
	errNoLimits  = errors.New("null instead of a model's thresholds")
)

// readHead reads a head.
func readHead(value []byte) (*head, error) {
	h := new(head)
	if err := json.Unmarshal(value, h); err != nil {
		return nil, fmt.Errorf("head of the catalog: %w", err)
	}
	switch {
	case h.Format > format:
		return nil, errFormat
	case h.Version == 0:
		return nil, errNoVersion
	}
	return h, h.Settings.check()
}

// entry is one worker of the catalog.
type entry struct {
	// Created is the version of the catalog since which the worker has its scope, block size and
	// eagle flag. Of workers that contradict each other the one that was first counts.
	Created uint64          `json:"created"`
	Record  json.RawMessage `json:"record"` // a catalog.Record, perhaps with members of a newer release

	record catalog.Record
}

// partOf returns the number of the part that has a worker.
func partOf(id uint64) int {
	const golden = 0x9e3779b97f4a7c15
	return int(id * golden >> 58)
}

// part is the workers of a part, by id.
type part struct {
	key  string // "" before it is in the bucket
	size int    // of its text in bytes, once it is there
	of   []*entry
}

var (
	errLongPart  = fmt.Errorf("a part of the catalog has at most %d workers and %d MiB", maxPartWorkers, maxPart>>20)
	errLarge     = fmt.Errorf("the catalog has at most %d MiB", maxCatalog>>20)
	errWrongPart = errors.New("not the workers of this part, by id")
)

// pack returns the value of a part, and sets its size.
func (p *part) pack() ([]byte, error) {
	text, err := json.Marshal(p.of)
	if err != nil {
		return nil, err
	}
	if p.size = len(text); p.size > maxPart || len(p.of) > maxPartWorkers {
		return nil, errLongPart
	}
	return zip(text)
}

// badPartError says why a part cannot be read, however often that is tried.
type badPartError struct {
	key string
	err error
}

func (e *badPartError) Error() string { return e.key + ": " + e.err.Error() }
func (e *badPartError) Unwrap() error { return e.err }

// unpack reads the value of part n.
func unpack(n int, key string, value []byte) (*part, error) {
	text, err := unzip(value, maxPart)
	if err != nil {
		return nil, &badPartError{key, err}
	}
	p := &part{key: key, size: len(text)}
	if p.of, err = readEntries(n, text); err != nil {
		return nil, &badPartError{key, err}
	}
	return p, nil
}

// readEntries reads the text of part n. It stops at the first entry that cannot be there.
func readEntries(n int, text []byte) (list []*entry, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') {
		return nil, errWrongPart
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
		case len(list) == maxPartWorkers:
			return nil, errLongPart
		case partOf(id) != n, len(list) > 0 && id <= list[len(list)-1].record.ID:
			return nil, errWrongPart
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

// newKey returns a key for a part.
func newKey() string { return partPrefix + "." + rand.Text() }

// state is one version of the catalog. It never changes.
type state struct {
	version  uint64
	ids      []string
	revision uint64 // of the head in the bucket, 0: it is not there
	file     string
	settings *settings // nil: none
	old      []oldPart
	parts    [numParts]*part // nil: without workers
}

// entries lists the workers in the order in which they were created.
func (s *state) entries() (list []*entry) {
	for _, p := range s.parts {
		if p != nil {
			list = append(list, p.of...)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.record.ID, b.record.ID))
	})
	return list
}

// records returns the workers as a set that other catalogs copy. local is what this process has.
func (s *state) records(local *catalog.Catalog) []catalog.Record {
	list := s.entries()
	known := make(map[uint64]struct{})
	for _, w := range local.Registered() {
		known[w.ID] = struct{}{}
	}
	records := make([]catalog.Record, len(list))
	for i, e := range list {
		records[i] = e.record
		if _, is := known[e.record.ID]; is {
			records[i] = e.record.Untold()
		}
	}
	return records
}

// find returns the worker with an id, nil if there is none.
func (s *state) find(id uint64) *entry {
	p := s.parts[partOf(id)]
	if p == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(p.of, id, func(e *entry, id uint64) int { return cmp.Compare(e.record.ID, id) })
	if !found {
		return nil
	}
	return p.of[i]
}

// unwritten returns the state as one of which the bucket has nothing.
func (s *state) unwritten() *state {
	u := *s
	u.revision, u.old = 0, nil
	for n, p := range s.parts {
		if p != nil {
			u.parts[n] = &part{of: p.of}
		}
	}
	return &u
}

// precedes reports whether o was made from s, as far as is known: a bucket that has s then is behind, or has
// lost something.
func (s *state) precedes(o *state) bool { return len(s.ids) > 0 && slices.Contains(o.ids, s.ids[0]) }

// successor returns the next version of the catalog, without workers.
func (s *state) successor() *state {
	ids := append([]string{rand.Text()}, s.ids[:min(len(s.ids), maxIDs-1)]...)
	return &state{version: s.version + 1, ids: ids, revision: s.revision, file: s.file, settings: s.settings}
}

// fill gives a state its workers. The parts of was that have the same are kept; others have no key yet.
func (s *state) fill(entries []*entry, was *state) {
	var parts [numParts][]*entry
	for _, e := range entries {
		n := partOf(e.record.ID)
		parts[n] = append(parts[n], e)
	}
	for n, of := range parts {
		slices.SortFunc(of, func(a, b *entry) int { return cmp.Compare(a.record.ID, b.record.ID) })
		old := was.parts[n]
		switch {
		case old != nil && slices.Equal(old.of, of):
			s.parts[n] = old
		case len(of) > 0:
			s.parts[n] = &part{of: of}
		}
	}
}

// entryOf returns the entry of a worker in a version: was, which may be nil, if nothing has changed.
func (s *state) entryOf(w *catalog.Worker, was *entry) (*entry, error) {
	text, err := json.Marshal(&w.Record)
	if err != nil {
		return nil, err
	}
	e := &entry{Created: s.version, Record: text, record: w.Record}
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
	return s.parts == o.parts && s.file == o.file && s.settings == o.settings
}

// shared returns what the replicas share beside workers.
func (s *state) shared() settings {
	if s.settings == nil {
		return settings{}
	}
	return *s.settings
}
