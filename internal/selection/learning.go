package selection

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// ScopePolicy is the policy of a scope that has workers.
type ScopePolicy struct {
	Scope     catalog.Scope
	Name      string          // of the instance
	Type      string          // "" for the built-in cost
	DecidedBy policies.Reason // why it decides
	Shadow    []string
	// Learned is what has been learned about the duration of prefills; nil if the policy does
	// not use it.
	Learned *LearnedPrefills
}

// LearnedPrefills has the learned parameters of a scope, see [ttft.Parameters].
type LearnedPrefills struct {
	ttft.Parameters
	Samples uint64
	// Calibration and Compared say how far predictions are off.
	Calibration ttft.Calibration
	Compared    ttft.Compared
	Flow        ttft.Flow
	Ranks       []RankQueue
	Rails       []ttft.RailState
}

// RankQueue is the work that a rank still has to compute, with its predicted duration.
type RankQueue struct {
	Rank  catalog.Rank
	Queue ttft.Queue
	Wait  float64 // seconds
	// PerOutput is the rank's time per output token, see ttft.Learner.PerOutput.
	PerOutput float64
}

// Learning has the use cases about selection policies and what they learn.
type Learning struct {
	log     zerolog.Logger
	catalog *catalog.Catalog
	ledger  *reservations.Ledger
	scopes  *scopes.Registry

	learners *policies.Learners
	own      *policies.Table   // of the configuration
	of       policies.Settings // of own, for sections that come later
	settings settings.Store

	mu      sync.Mutex // guards section, and the order of changes
	section string     // the section worker_selection that is in force, "": own
}

// LearningConfig has the settings of a Learning.
type LearningConfig struct {
	Own      *policies.Table // of the configuration; nil: the built-in cost everywhere
	Weights  selector.Weights
	Learners *policies.Learners
	Settings settings.Store // keeps the policies, which are changed there
}

// NewLearning returns the policies of a process: those of the configuration.
func NewLearning(config LearningConfig, c *catalog.Catalog, r *scopes.Registry, l *reservations.Ledger, log zerolog.Logger) *Learning {
	of := config.Own.Settings()
	of.Weights = config.Weights
	return &Learning{log: log, catalog: c, ledger: l, scopes: r, learners: config.Learners, own: config.Own, of: of, settings: config.Settings}
}

// ApplyPolicies makes all scopes choose by a section worker_selection of a policy file, as JSON, from now
// on; nil: by the policies of the configuration. Learned values stay. The histories and shadows of policies
// begin again. The error says what is wrong with the section; nothing has changed then.
func (le *Learning) ApplyPolicies(section []byte) error {
	le.mu.Lock()
	defer le.mu.Unlock()
	if string(section) == le.section {
		return nil
	}
	table := le.own
	if len(section) > 0 {
		var err error
		if table, err = policies.Parse(section, le.of); err != nil {
			return err
		}
	}
	le.section = string(section)
	le.learners.SetTable(table)
	le.ledger.RenewPrefills() // before a policy needs the queues
	le.scopes.SetPolicies(table)
	le.log.Info().Bool("configured", len(section) == 0).Msg("selection policies have changed")
	return nil
}

// PolicySection returns the section worker_selection that ApplyPolicies has put in force, "": none.
func (le *Learning) PolicySection() string {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.section
}

// SettingsVersion returns the version of the settings that the replicas of a fleet share, 0: they are this
// process's own.
func (le *Learning) SettingsVersion() uint64 { return le.settings.Version() }

// PolicyChange is what SetPolicies has done.
type PolicyChange struct {
	// Section is the digest of the section, 16 hexadecimal digits, "": none; Changed names what is not as it was
	// before, see policies.Changes.
	Section string
	Changed []string
	// Behind names the replicas of a fleet that have not changed yet, or refuse the section.
	Behind []string
}

// SetPolicies is ApplyPolicies where the settings are kept: in this process, or in all replicas of a fleet.
func (le *Learning) SetPolicies(section []byte) (change PolicyChange, err error) {
	if section != nil {
		if section, err = le.checkPolicies(section); err != nil {
			return change, &contract.Error{Kind: contract.BadRequest, Text: strings.ReplaceAll(err.Error(), "\n", "; "), Err: err}
		}
		sum := sha256.Sum256(section)
		change.Section = hex.EncodeToString(sum[:8])
	}
	var was []byte
	change.Behind, err = le.settings.Edit(func(now *settings.Settings) error {
		was, now.Policies = now.Policies, section
		return nil
	})
	if err == nil {
		change.Changed = policies.Changes(was, section)
	}
	return change, err
}

// Policies lists the policies of the matching scopes, by model and tenant.
func (le *Learning) Policies(of catalog.ScopeFilter) []ScopePolicy {
	var all []ScopePolicy
	for sc, state := range le.scopes.All() {
		if !sc.Matches(of.Model, of.Tenant) {
			continue
		}
		rules := state.Rules()
		p := ScopePolicy{Scope: sc, Name: policies.BuiltIn, DecidedBy: rules.DecidedBy}
		if x := rules.Policies; x != nil {
			p.Name, p.Type = x.Name, x.Type
			for _, shadow := range x.Shadows() {
				p.Shadow = append(p.Shadow, shadow.Name)
			}
			if x.Learner != nil {
				p.Learned = le.learned(sc, x.Learner)
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b ScopePolicy) int { return a.Scope.Compare(b.Scope) })
	return all
}

func (le *Learning) learned(sc catalog.Scope, l *ttft.Learner) *LearnedPrefills {
	m := l.Model()
	known := &LearnedPrefills{Parameters: m.Parameters, Samples: l.Samples(), Calibration: m.Calibration, Compared: l.Compare(), Flow: m.Flow(le.ledger.Now()), Rails: l.States()}
	le.eachQueue(sc, l, func(e catalog.Entry, q ttft.Queue) {
		wait, _ := m.Wait(&q)
		known.Ranks = append(known.Ranks, RankQueue{e.Rank, q, wait, l.PerOutput(e.Slot, e.Rank)})
	})
	return known
}

// eachQueue calls f for every rank of a scope that the ledger knows, under the lock of
// the scope's ledger.
func (le *Learning) eachQueue(sc catalog.Scope, l *ttft.Learner, f func(catalog.Entry, ttft.Queue)) {
	snap := le.catalog.Snapshot(sc)
	if snap == nil {
		return
	}
	le.ledger.Look(sc, nil, func(v *reservations.View) {
		for _, e := range snap.Ranks() {
			if v.Known(e.Slot, e.Rank) {
				f(e, QueueOf(v, e, l))
			}
		}
	})
}

// Sweep lets the learners process samples that have waited long enough, checks for
// stalled ranks, and logs which guard rails have engaged or ended. It must be called every second.
func (le *Learning) Sweep() {
	le.learners.Forget(func(sc catalog.Scope) bool { return le.scopes.Of(sc) != nil })
	for sc, l := range le.learners.All() {
		l.Settle(le.ledger.Now())
		model := l.Model()
		le.eachQueue(sc, l, func(e catalog.Entry, q ttft.Queue) {
			_, stall := model.Wait(&q)
			l.Watch(e.Slot, e.Rank, stall > 1)
		})
		for _, c := range l.Changes() {
			logRail(le.log, sc, c)
		}
	}
}

func logRail(log zerolog.Logger, sc catalog.Scope, c ttft.Change) {
	event, text := log.Info(), "guard rail of predicted-ttft ended"
	if c.Engaged {
		event, text = log.Warn(), "guard rail of predicted-ttft engaged"
		if c.Rail == ttft.LateScope || c.Rail == ttft.Untracked {
			event.Str("decides", "dynamo-default-cost-fn")
		}
	}
	event = event.Str("model", catalog.Clip(sc.Model)).Str("tenant", catalog.Clip(sc.Tenant)).Stringer("rail", c.Rail)
	if c.Rail.OfRank() {
		event = event.Uint64("worker_id", c.Rank.Worker).Uint32("dp_rank", c.Rank.DP)
	}
	event.Msg(text)
}

// escapes are those of a JSON string: two that are one character beyond 16 bits, or another one.
var escapes = regexp.MustCompile(`\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|.)`)

// checkPolicies returns a section as all replicas write it. Of JSON, readers of YAML lack only the escapes
// of characters beyond 16 bits.
func (le *Learning) checkPolicies(section []byte) ([]byte, error) {
	section = escapes.ReplaceAllFunc(section, func(escape []byte) []byte {
		var char string
		if len(escape) == 2 || json.Unmarshal(slices.Concat([]byte{'"'}, escape, []byte{'"'}), &char) != nil {
			return escape
		}
		return []byte(char)
	})
	if _, err := policies.Parse(section, le.of); err != nil {
		return nil, err
	}
	return json.Marshal(json.RawMessage(section))
}
