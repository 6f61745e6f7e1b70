package selection

import (
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Links have what is learned of how long KV caches take from some workers to others: by fetches, and between the sides of pairs.
type Links struct{ api *API }

// Links returns what is learned of links.
func (a *API) Links() Links { return Links{a} }

// linkVersion is the form of keptLink. Others are not read.
const linkVersion = 1

// keptLink is a link and what is learned of it, as JSON.
type keptLink struct {
	Version int      `json:"version"`
	Fetches bool     `json:"fetches"` // learned by fetches; else between the sides of pairs
	From    linked   `json:"from"`
	To      linked   `json:"to"`
	Samples int      `json:"samples"`
	Weight  float64  `json:"weight"` // the sum of the weights of the samples
	Sums    linkSums `json:"sums"`
	Last    int64    `json:"last"` // Unix time of the latest sample, in nanoseconds
}

// linkSums are the weighted sums of the samples' tokens and seconds, and of their products.
type linkSums struct {
	Tokens        float64 `json:"tokens"`
	Seconds       float64 `json:"seconds"`
	TokensTokens  float64 `json:"tokens_tokens"`
	TokensSeconds float64 `json:"tokens_seconds"`
}

// Kept has the JSON of each link of which something is learned, with its scope. It is for Restore.
func (l Links) Kept() iter.Seq2[catalog.Scope, json.RawMessage] {
	return func(yield func(catalog.Scope, json.RawMessage) bool) {
		for _, from := range []*transfers{&l.api.transfers, &l.api.fetches.transfers} {
			for of, x := range from.known() {
				k := keptLink{
					Version: linkVersion, Fetches: from != &l.api.transfers, From: of.from, To: of.to, Samples: x.samples,
					Weight: x.n, Sums: linkSums{x.x, x.y, x.xx, x.xy}, Last: x.last.UnixNano(),
				}
				text, err := json.Marshal(k)
				if err != nil {
					panic(err) // strings and finite numbers
				}
				if !yield(of.scope, text) {
					return
				}
			}
		}
	}
}

// known returns a copy of what is learned.
func (t *transfers) known() map[link]transfer {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[link]transfer, len(t.byLink))
	for of, x := range t.byLink {
		if x.samples > 0 {
			all[of] = *x
		}
	}
	return all
}

// Restore goes on with what was learned of a link before. It must be called before anything is learned of the link. The error says
// why it cannot: nobody can have learned that, or it is of another version. Then nothing has changed.
func (l Links) Restore(sc catalog.Scope, state json.RawMessage) error {
	var k keptLink
	if err := json.Unmarshal(state, &k); err != nil {
		return fmt.Errorf("a link: %w", err)
	}
	switch {
	case k.Version != linkVersion:
		return fmt.Errorf("a link: its form is that of another version, %d", k.Version)
	case !k.possible():
		return fmt.Errorf("a link: no transfers make %.200q", state)
	}
	to := &l.api.transfers
	if k.Fetches {
		to = &l.api.fetches.transfers
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if x := to.entry(link{sc, k.From, k.To}); x != nil {
		*x = transfer{samples: k.Samples, n: k.Weight, x: k.Sums.Tokens, y: k.Sums.Seconds, xx: k.Sums.TokensTokens, xy: k.Sums.TokensSeconds}
		if x.last = time.Unix(0, k.Last); x.last.After(time.Now()) {
			x.last = time.Now() // the clock was set back
		}
	}
	return nil
}

// possible reports whether transfers can make the sums. A number that is none is not.
func (k *keptLink) possible() bool {
	const most, rounding = 1e15, 1e-9
	s := &k.Sums
	if !(k.Samples >= 1 && k.Samples <= maxTransfers && k.Weight >= 1 && k.Weight <= float64(k.Samples)+rounding) {
		return false
	}
	squares := s.Tokens * s.Tokens / k.Weight // at most what is the sum of the squares
	return s.Tokens > 0 && s.Tokens <= most && s.Seconds >= 0 && s.Seconds <= most &&
		s.TokensTokens >= squares*(1-rounding) && s.TokensTokens <= most*most && s.TokensSeconds >= 0 && s.TokensSeconds <= most*most
}
