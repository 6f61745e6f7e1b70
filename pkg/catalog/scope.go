package catalog

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Scope is one isolated world of workers: a model for one tenant. Selection,
// index and load never look across scopes.
type Scope struct {
	Model, Tenant string
}

// DefaultName is the model, and the tenant, of requests that name none.
const DefaultName = "default"

const (
	// MaxName is the largest length of a worker's model and tenant, in bytes. They
	// are keys of maps and labels of metrics, one of each for every rank.
	MaxName = 1024
	// maxClipped bounds what Clip leaves, in bytes.
	maxClipped = 256
)

// check returns an error for names that are too long.
func (s Scope) check() error {
	for _, name := range [...]struct{ field, text string }{{"model_name", s.Model}, {"tenant_id", s.Tenant}} {
		if n := len(name.text); n > MaxName {
			return &LimitError{Limit: LimitText, Reason: fmt.Sprintf("%s has %d bytes, the maximum is %d", name.field, n, MaxName)}
		}
	}
	return nil
}

// ShortName returns a model or tenant for an error text: as it is, or the first
// 256 bytes with "…" if it is longer than any worker's may be.
func ShortName(name string) string {
	if len(name) <= MaxName {
		return name
	}
	return Clip(name)
}

// Clip shortens a client's text for a log line or an error that repeats it: to
// 256 bytes and "…".
func Clip(text string) string {
	if len(text) <= maxClipped {
		return text
	}
	n := maxClipped
	for n > maxClipped-utf8.UTFMax && !utf8.RuneStart(text[n]) { // at the end of a character
		n--
	}
	return text[:n] + "…"
}

// Short returns the scope as error texts show it, see ShortName.
func (s Scope) Short() Scope { return Scope{ShortName(s.Model), ShortName(s.Tenant)} }

// Matches reports whether the scope has the given model and tenant; nil matches
// any.
func (s Scope) Matches(model, tenant *string) bool {
	return (model == nil || *model == s.Model) && (tenant == nil || *tenant == s.Tenant)
}

// Compare orders scopes by model, then by tenant.
func (s Scope) Compare(o Scope) int {
	return cmp.Or(strings.Compare(s.Model, o.Model), strings.Compare(s.Tenant, o.Tenant))
}

// Rank is one data-parallel rank of one worker: the unit that holds a KV cache,
// carries load and is chosen.
type Rank struct {
	Worker uint64
	DP     uint32
}

// String gives the form that the wire contract uses in its error texts
// (dynamo-kv-router 1.3.1).
func (r Rank) String() string {
	return fmt.Sprintf("WorkerWithDpRank { worker_id: %d, dp_rank: %d }", r.Worker, r.DP)
}

// Compare orders ranks by worker, then by data-parallel rank.
func (r Rank) Compare(o Rank) int {
	switch {
	case r.Worker != o.Worker:
		if r.Worker < o.Worker {
			return -1
		}
		return 1
	case r.DP != o.DP:
		if r.DP < o.DP {
			return -1
		}
		return 1
	}
	return 0
}
