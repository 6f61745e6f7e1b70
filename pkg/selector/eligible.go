package selector

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrNoEndpoints says that the filters leave no rank: no worker passes, or the
// pinned rank does not exist or does not pass. The text is that of the wire
// contract.
var ErrNoEndpoints = errors.New("no endpoints available to route work")

// PinnedError says that a request pins a worker outside its own list of allowed
// workers. The text is that of the wire contract.
type PinnedError struct {
	Worker uint64
}

// Error gives the text of the wire contract.
func (e *PinnedError) Error() string {
	return fmt.Sprintf("pinned worker %d is not in allowed worker set", e.Worker)
}

// Filter decides which workers a request may run on. The zero Filter admits
// every worker.
type Filter struct {
	restricted bool
	allowed    []uint64 // sorted, distinct
	required   []string // sorted, distinct
}

// NewFilter returns the filter of a request. allowed nil means every worker, an
// empty list means none; a worker must have all taints in required. NewFilter
// keeps both lists and sorts them, so that checking a worker is a binary
// search.
func NewFilter(allowed []uint64, required []string) Filter {
	slices.Sort(allowed)
	slices.Sort(required)
	return Filter{
		restricted: allowed != nil,
		allowed:    slices.Compact(allowed),
		required:   slices.Compact(required),
	}
}

// AdmitsAll reports whether every worker passes.
func (f *Filter) AdmitsAll() bool { return !f.restricted && len(f.required) == 0 }

// Allowed returns the sorted list of allowed workers, if there is one. The caller must not
// change it.
func (f *Filter) Allowed() (ids []uint64, restricted bool) { return f.allowed, f.restricted }

// Allows reports whether the list of allowed workers admits the worker.
func (f *Filter) Allows(worker uint64) bool {
	if !f.restricted {
		return true
	}
	_, found := slices.BinarySearch(f.allowed, worker)
	return found
}

// Eligible reports whether the request may run on the worker; hasTaint reports
// whether the worker has a taint.
func (f *Filter) Eligible(worker uint64, hasTaint func(string) bool) bool {
	if !f.Allows(worker) {
		return false
	}
	for _, taint := range f.required {
		if !hasTaint(taint) {
			return false
		}
	}
	return true
}

// CheckPinned returns a [*PinnedError] if the request pins a worker that its
// own list does not allow. It comes before all other checks of the worker.
func (f *Filter) CheckPinned(worker uint64) error {
	if f.Allows(worker) {
		return nil
	}
	return &PinnedError{Worker: worker}
}

// Key returns a short text that is equal for filters that admit the same
// workers by the same rule, and different for others: "" for the zero Filter,
// else a SHA-256 digest of the lists.
func (f *Filter) Key() string {
	if !f.restricted && len(f.required) == 0 {
		return ""
	}
	hash := sha256.New()
	buf := make([]byte, 0, 4096)
	head := uint64(math.MaxUint64) // no list; a list is not that long
	if f.restricted {
		head = uint64(len(f.allowed))
	}
	buf = binary.LittleEndian.AppendUint64(buf, head)
	for _, id := range f.allowed {
		if len(buf)+8 > cap(buf) {
			hash.Write(buf)
			buf = buf[:0]
		}
		buf = binary.LittleEndian.AppendUint64(buf, id)
	}
	hash.Write(buf)
	for _, taint := range f.required {
		buf = binary.LittleEndian.AppendUint64(buf[:0], uint64(len(taint)))
		hash.Write(append(buf, taint...))
	}
	return string(hash.Sum(buf[:0]))
}

// TaintFactor returns the factor of a worker's cost for the taints that the
// request prefers: exp(-tanh(sum)), where sum adds the weights of those that
// the worker has. It is between 1/e and e, and 1 when none matches. Positive
// weights attract.
func TaintFactor(preferred map[string]float32, has func(string) bool) float64 {
	var memory [16]float64
	matching := memory[:0]
	for taint, weight := range preferred {
		if has(taint) {
			matching = append(matching, float64(weight))
		}
	}
	// The map's order is random and float sums depend on order: sorted, equal
	// workers get exactly equal costs.
	slices.Sort(matching)
	var sum float64
	for _, weight := range matching {
		sum += weight
	}
	if math.IsNaN(sum) {
		return 1
	}
	return math.Exp(-math.Tanh(sum))
}
