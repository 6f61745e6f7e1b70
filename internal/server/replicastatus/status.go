package replicastatus

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
)

// Path is where a replica shows its Status.
const Path = "/replica_sync/status"

// Status is what replicas should agree about.
type Status struct {
	Process  string    `json:"process"` // id in decimal, new in every life of the program
	Version  string    `json:"version"`
	Time     time.Time `json:"time"`
	Contract string    `json:"contract"`
	// Settings is a digest of what decides choices in every scope.
	Settings string `json:"settings"`
	// Shared is the version of the fleet's settings that the process has, 0: none.
	Shared     uint64              `json:"settings_version,omitempty"`
	Thresholds bounded[Thresholds] `json:"thresholds"` // by model
	Loads      bounded[Load]       `json:"loads"`      // by model and tenant
}

// maxEntries bounds the models and the scopes of a status that is read.
const maxEntries = 4096

// bounded is a list of at most maxEntries elements when it is read: a byte or two of a hostile replica
// would be a hundred here.
type bounded[T any] []T

// UnmarshalJSON reads the list.
func (b *bounded[T]) UnmarshalJSON(text []byte) error {
	*b = nil
	decoder := json.NewDecoder(bytes.NewReader(text))
	switch bracket, err := decoder.Token(); {
	case err != nil:
		return err //nolint:wrapcheck // the caller says what it reads
	case bracket == nil:
		return nil // null
	case bracket != json.Delim('['):
		return fmt.Errorf("%v is no list", bracket)
	}
	for decoder.More() {
		if len(*b) == maxEntries {
			return fmt.Errorf("a list has more than %d elements", maxEntries)
		}
		var element T
		if err := decoder.Decode(&element); err != nil {
			return err //nolint:wrapcheck // the caller says what it reads
		}
		*b = append(*b, element)
	}
	return nil
}

// Thresholds are the busy thresholds of a model; nil: not set.
type Thresholds struct {
	Model           string   `json:"model"`
	DecodeBlocks    *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens   *uint64  `json:"active_prefill_tokens_threshold"`
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac"`
}

// Load is the load of a scope.
type Load struct {
	Model         string `json:"model_name"`
	Tenant        string `json:"tenant_id"`
	Policy        string `json:"policy"`
	Ranks         int    `json:"ranks"`
	Requests      uint64 `json:"requests"` // live reservations
	Blocks        uint64 `json:"blocks"`   // active
	PrefillTokens uint64 `json:"prefill_tokens"`
	// Digest is equal where every rank has the same load.
	Digest string `json:"digest"`
}

// Scope returns the scope of a load.
func (l *Load) Scope() catalog.Scope { return catalog.Scope{Model: l.Model, Tenant: l.Tenant} }

// Config is what the process is.
type Config struct {
	Process  uint64
	Version  string
	Contract string
	Settings string // whatever decides choices; replicas should have the same text
}

// Status returns the status of this process.
func (r *Reader) Status() *Status {
	sum := sha256.Sum256([]byte(r.config.Settings + r.svc.PolicySection()))
	st := &Status{
		Process: strconv.FormatUint(r.config.Process, 10), Version: r.config.Version, Time: r.now(), Contract: r.config.Contract,
		Settings: hex.EncodeToString(sum[:8]), Shared: r.svc.SettingsVersion(), Thresholds: []Thresholds{}, Loads: []Load{},
	}
	for _, t := range r.svc.BusyThresholds() {
		st.Thresholds = append(st.Thresholds, Thresholds{t.Model, t.DecodeBlocks, t.PrefillTokens, t.PrefillFraction})
	}
	policies := make(map[catalog.Scope]string)
	for _, p := range r.svc.Policies(catalog.ScopeFilter{}) {
		policies[p.Scope] = p.Name
	}
	for _, l := range r.svc.Loads(nil, nil) {
		st.Loads = append(st.Loads, loadOf(&l, policies[l.Scope]))
	}
	return st
}

func loadOf(l *selection.ScopeLoads, policy string) Load {
	of := Load{Model: l.Scope.Model, Tenant: l.Scope.Tenant, Policy: policy, Ranks: len(l.Loads)}
	h := sha256.New()
	for _, rank := range l.Loads {
		of.Requests += rank.Requests
		of.Blocks += rank.DecodeBlocks
		of.PrefillTokens += rank.PrefillTokens
		_, _ = fmt.Fprintf(h, "%d/%d %d %d %d\n", rank.Rank.Worker, rank.Rank.DP, rank.Requests, rank.DecodeBlocks, rank.PrefillTokens)
	}
	of.Digest = hex.EncodeToString(h.Sum(nil)[:8])
	return of
}

// only returns the parts of a status that match a filter: thresholds are those of its scopes' models.
func (s *Status) only(of catalog.ScopeFilter) *Status {
	c := *s
	c.Loads = slices.DeleteFunc(slices.Clone(s.Loads), func(l Load) bool { return !l.Scope().Matches(of.Model, of.Tenant) })
	if of != (catalog.ScopeFilter{}) {
		c.Thresholds = slices.DeleteFunc(slices.Clone(s.Thresholds), func(t Thresholds) bool {
			return !slices.ContainsFunc(c.Loads, func(l Load) bool { return l.Model == t.Model })
		})
	}
	return &c
}
