package counts

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
)

var promisesTotal = Families.Counter("promises_total", "Targets and deadlines of requests by what came of them, as it was observed: `first_token` is a target, and `answer` a deadline. Without a policy_class they had no wait queue; without a tenant they are of tenants beyond the first 32 of the model that the policy file does not name. Models have series from their first such request on.", "model_name", "policy_class", "tenant", "wanted", "outcome")

// Wanted is what a request may want by a certain time.
type Wanted uint8

// What requests want.
const (
	FirstToken Wanted = iota
	WholeAnswer
	numWanted = int(iota)
)

// String gives the label.
func (w Wanted) String() string { return [numWanted]string{"first_token", "answer"}[w] }

// Promises counts what came of the targets and deadlines of a tenant in a policy class. Its methods take no lock.
type Promises struct {
	counts [numWanted][fairness.NumOutcomes]atomic.Uint64
}

// Note counts one.
func (p *Promises) Note(w Wanted, o fairness.Outcome) { p.counts[w][o].Add(1) }

// maxPromisedTenants bounds the tenants of a model with counts of their own, in each policy class, beside those that the
// policy file names.
const maxPromisedTenants = 32

type promisedTo struct{ class, tenant string }

// promises are those of one model.
type promises struct {
	mu  sync.Mutex // guards the fields below; innermost
	by  map[promisedTo]*Promises
	own map[string]int // tenants with counts of their own that are not named, by class
}

// Promises returns the counters of a tenant, named: by the policy file, in a policy class, "" for requests without a queue.
func (m *ModelSelections) Promises(class, tenant string, named bool) *Promises {
	p := &m.promises
	key := promisedTo{class, catalog.Clip(strings.ToValidUTF8(tenant, "�"))}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.by[key]; known != nil {
		return known
	}
	if p.by == nil {
		p.by, p.own = make(map[promisedTo]*Promises), make(map[string]int)
	}
	switch {
	case named:
	case p.own[class] < maxPromisedTenants:
		p.own[class]++
	default:
		key.tenant = ""
		if known := p.by[key]; known != nil {
			return known
		}
	}
	key.tenant = strings.Clone(key.tenant)
	p.by[key] = new(Promises)
	return p.by[key]
}

func (p *promises) send(ch chan<- prometheus.Metric, model string) {
	p.mu.Lock()
	all := maps.Clone(p.by)
	p.mu.Unlock()
	for key, of := range all {
		for w := range of.counts {
			for o := range of.counts[w] {
				metrics.Send(ch, promisesTotal, of.counts[w][o].Load(), model, key.class, key.tenant, Wanted(w).String(), fairness.Outcome(o).String())
			}
		}
	}
}
