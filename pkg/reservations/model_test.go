package reservations

import (
	"math"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// model is the dumbest ledger that can be right: it keeps the list of bookings
// and recomputes every answer from it. It shares no code with the ledger.
type model struct {
	now   time.Duration
	ranks map[place]catalog.Rank
	live  map[string]*booking
	// weight of held prompt blocks that do not weigh 1, in unit parts
	weight map[blockAt]int
}

// unit is what a whole block weighs in the model, which counts in integers. Of
// its parts, some are exact in binary and most are not.
const unit = 56

type place struct {
	scope catalog.Scope
	slot  uint32
}

type blockAt struct {
	place
	hash uint64
}

type booking struct {
	place
	rank    catalog.Rank
	hashes  map[uint64]bool
	chain   []uint64 // first occurrences
	tokens  uint64
	outputs []int
	at      time.Duration
}

func newModel() *model {
	return &model{
		ranks:  make(map[place]catalog.Rank),
		live:   make(map[string]*booking),
		weight: make(map[blockAt]int),
	}
}

func (m *model) holders(b blockAt) (n int) {
	for _, r := range m.live {
		if r.place == b.place && r.hashes[b.hash] {
			n++
		}
	}
	return n
}

func (m *model) book(id string, p place, r catalog.Rank, hashes []uint64, tokens uint64) error {
	if got, ok := m.ranks[p]; !ok || got != r {
		return ErrUnknownRank
	}
	if b := m.live[id]; b != nil {
		return &ExistsError{ID: id, Rank: b.rank}
	}
	b := &booking{place: p, rank: r, hashes: make(map[uint64]bool), tokens: tokens, at: m.now}
	for _, h := range hashes {
		if !b.hashes[h] {
			b.hashes[h] = true
			b.chain = append(b.chain, h)
		}
	}
	m.live[id] = b
	return nil
}

func (m *model) free(id string) error {
	b := m.live[id]
	if b == nil {
		return ErrNotFound
	}
	delete(m.live, id)
	for h := range b.hashes {
		if at := (blockAt{b.place, h}); m.holders(at) == 0 {
			delete(m.weight, at)
		}
	}
	return nil
}

func (m *model) prefillComplete(id string) error {
	b := m.live[id]
	if b == nil {
		return ErrNotFound
	}
	b.tokens = 0
	return nil
}

func (m *model) output(id string, fraction *int) error {
	b := m.live[id]
	if b == nil {
		return ErrNotFound
	}
	b.outputs = append(b.outputs, unit)
	if fraction == nil {
		return nil
	}
	for i := range b.outputs {
		b.outputs[i] = *fraction
	}
	for h := range b.hashes {
		if at := (blockAt{b.place, h}); m.holders(at) == 1 {
			m.weight[at] = *fraction
		}
	}
	return nil
}

func (m *model) removeRank(p place) (freed int) {
	for id, b := range m.live {
		if b.place == p {
			freed++
			_ = m.free(id)
		}
	}
	delete(m.ranks, p)
	return freed
}

func (m *model) expire() (n int) {
	for id, b := range m.live {
		if m.now-b.at > 300*time.Second {
			n++
			_ = m.free(id)
		}
	}
	return n
}

// load is the row of one rank.
func (m *model) load(p place) Load {
	row := Load{Rank: m.ranks[p]}
	blocks := make(map[uint64]bool)
	var sum int
	for _, b := range m.live {
		if b.place != p {
			continue
		}
		row.Requests++
		if row.PrefillTokens+b.tokens < row.PrefillTokens {
			row.PrefillTokens = math.MaxUint64
		} else {
			row.PrefillTokens += b.tokens
		}
		for _, w := range b.outputs {
			sum += w
		}
		for h := range b.hashes {
			blocks[h] = true
		}
	}
	for h := range blocks {
		if w, ok := m.weight[blockAt{p, h}]; ok {
			sum += w
		} else {
			sum += unit
		}
	}
	row.Blocks = uint64((sum + unit/2) / unit)
	return row
}

func (m *model) shared(p place, prompt []uint64) (longest uint32) {
	for _, b := range m.live {
		if b.place != p {
			continue
		}
		n := 0
		for n < len(prompt) && n < len(b.chain) && prompt[n] == b.chain[n] {
			n++
		}
		longest = max(longest, uint32(n))
	}
	return longest
}
