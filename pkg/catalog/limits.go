package catalog

import "fmt"

// Limits bound what can be registered, in all scopes together; 0 is no limit.
// Workers of both contracts count, also those that are incomplete.
type Limits struct {
	Workers int
	Ranks   int
	Streams int // streams of KV events, unless the catalog does not follow them, and of loads
	Scopes  int // with at least one worker, or with a reserved slot
}

// The limits that a LimitError names.
const (
	LimitWorkers = "workers"
	LimitRanks   = "ranks"
	LimitStreams = "streams"
	LimitModels  = "models"     // scopes: a model counts once for each of its tenants
	LimitText    = "text_bytes" // of a name, an endpoint or another text
	LimitEntries = "entries"    // of a list or map
)

// Limits of the parts of a record besides MaxName and MaxRanks.
const (
	maxEndpoint = 4096 // bytes
	maxText     = 1024 // bytes of a taint, a domain, an id
	maxTaints   = 1024
	maxAdapters = 1024
	maxDomains  = 256 // topology domains
)

// LimitError refuses a registration because of a limit.
type LimitError struct {
	Limit string // LimitWorkers and so on
	// Full: the limit is on the number of workers, ranks, streams or scopes, so the same
	// registration may succeed once others have gone.
	Full   bool
	Reason string
}

// Error returns the reason.
func (e *LimitError) Error() string { return e.Reason }

func tooMany(limit string, most int) error {
	return &LimitError{Limit: limit, Full: true, Reason: fmt.Sprintf("the limit of %d %s is reached", most, limit)}
}

// checkTexts returns a *LimitError for a record with a text that is too long, or
// with too many of them. The ranks of the maps are checked elsewhere.
func (r *Record) checkTexts() error {
	c := textCheck{}
	for i := range fields {
		if f := &fields[i]; f.MaxBytes > 0 {
			f.Of.limits(&c, f, r)
		}
	}
	return c.err
}

// textCheck checks texts against limits and keeps the first fault as err.
type textCheck struct{ err error }

func (c *textCheck) optional(field string, text *string, most int) {
	if text != nil {
		c.text(field, *text, most)
	}
}

func (c *textCheck) text(field, text string, most int) {
	if len(text) > most && c.err == nil {
		c.err = &LimitError{Limit: LimitText, Reason: fmt.Sprintf("%s has %d bytes, the maximum is %d", field, len(text), most)}
	}
}

func (c *textCheck) entries(field string, n, most int) {
	if n > most && c.err == nil {
		c.err = &LimitError{Limit: LimitEntries, Reason: fmt.Sprintf("%s has %d entries, the maximum is %d", field, n, most)}
	}
}

// ranksNamed returns how many ranks the record names: those of its range and those
// that only have an event endpoint.
func (r *Record) ranksNamed() int {
	n := int(r.RankCount())
	for dp := range r.KVEventsEndpoints {
		if !r.HasRank(dp) {
			n++
		}
	}
	return n
}

// streamsNamed returns how many streams the record names.
func (r *Record) streamsNamed(s Settings) int {
	n := max(len(r.LoadEndpoints), countIf(r.loadEndpoint(r.FirstRank()) != ""))
	if s.KVEvents && r.Publishes() {
		n += max(len(r.KVEventsEndpoints), countIf(r.eventEndpoint(r.FirstRank()) != ""))
	}
	return n
}

func countIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// room counts registered workers against the limits.
type room struct {
	settings                *Settings
	workers, ranks, streams int
	scopes                  map[Scope]struct{}
}

// roomLocked counts the workers that stay.
func (c *Catalog) roomLocked(stays func(*member) bool) *room {
	t := &room{settings: &c.settings, scopes: make(map[Scope]struct{})}
	if c.settings.Limits == (Limits{}) {
		return t
	}
	for _, m := range c.mu.ordered {
		if stays(m) {
			t.add(&m.worker.Record)
		}
	}
	return t
}

func (ro *room) add(r *Record) {
	ro.workers++
	ro.ranks += r.ranksNamed()
	ro.streams += r.streamsNamed(*ro.settings)
	ro.scopes[r.Scope] = struct{}{}
}

// take adds a record if the limits have room for it. The error is a *LimitError.
func (ro *room) take(r *Record) error {
	before := *ro
	_, known := ro.scopes[r.Scope]
	ro.add(r)
	err := ro.exceeded()
	if err != nil {
		*ro = before
		if !known {
			delete(ro.scopes, r.Scope)
		}
	}
	return err
}

// exceeded returns a *LimitError if more is counted than the limits allow.
func (ro *room) exceeded() error {
	limits := &ro.settings.Limits
	switch {
	case limits.Workers > 0 && ro.workers > limits.Workers:
		return tooMany(LimitWorkers, limits.Workers)
	case limits.Ranks > 0 && ro.ranks > limits.Ranks:
		return tooMany(LimitRanks, limits.Ranks)
	case limits.Streams > 0 && ro.streams > limits.Streams:
		return tooMany(LimitStreams, limits.Streams)
	case limits.Scopes > 0 && len(ro.scopes) > limits.Scopes:
		return tooMany(LimitModels, limits.Scopes)
	}
	return nil
}

// checkRoomForLocked returns a *LimitError if the limits have no room for a record beside the
// other workers. It replaces that of m; nil for a new worker.
func (c *Catalog) checkRoomForLocked(r *Record, m *member) error {
	t := c.roomLocked(func(o *member) bool { return o != m })
	t.add(r)
	return t.exceeded()
}
