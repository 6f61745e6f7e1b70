package service_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/overload"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// shed plays a random history and keeps, in the simplest form, everything that
// decides about a refusal. It shares no code with the service.
type shed struct {
	*world
	rnd     *rand.Rand
	workers map[uint64]shedWorker
	carried map[catalog.Rank]bool
	live    map[string]*shedBooking
	next    int

	// Thresholds, -1 if unset: eighths of the blocks, tokens, quarters of a batch.
	eighths, tokens, quarters int
}

type shedWorker struct {
	ranks          uint32
	total, batched uint64 // 0 is unset, and the total is a multiple of 8
	tainted, ready bool
}

type shedBooking struct {
	rank    catalog.Rank
	hashes  []uint64
	output  uint64
	prefill uint64
	slots   bool
}

// TestShedHistories: after every step of a random history the loads are the
// model's, and every selection is refused or served exactly as the model says,
// with the causes and from the ranks that it names.
func TestShedHistories(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := &shed{
				world: start(t, eventsOff), rnd: rand.New(rand.NewPCG(seed, 4)),
				workers: map[uint64]shedWorker{}, carried: map[catalog.Rank]bool{}, live: map[string]*shedBooking{}, eighths: -1, tokens: -1, quarters: -1,
			}
			steps := []func(){
				m.register, m.leave, m.limit, m.unlimit, m.reserve, m.reserve, m.slotsAdd,
				m.choose, m.choose, m.choose, m.choose, m.complete, m.output, m.end, m.end,
			}
			for range 1500 {
				steps[m.rnd.IntN(len(steps))]()
				m.check()
				if t.Failed() {
					return
				}
			}
		})
	}
}

// maybe is nil for 0.
func maybe(n uint64) *uint64 {
	if n == 0 {
		return nil
	}
	return &n
}

func (m *shed) register() {
	id := m.rnd.Uint64N(4)
	wk := shedWorker{
		ranks: 1 + m.rnd.Uint32N(3), total: 8 * m.rnd.Uint64N(4), batched: m.rnd.Uint64N(40),
		tainted: m.rnd.IntN(2) == 0, ready: m.rnd.IntN(6) > 0,
	}
	_, err := m.PutWorker(record(id, wk.ranks, func(r *catalog.Record) {
		r.TotalKVBlocks, r.MaxNumBatchedTokens = maybe(wk.total), maybe(wk.batched)
		if wk.tainted {
			r.Taints = []string{"x"}
		}
		if !wk.ready {
			r.Endpoint = nil
		}
	}))
	if err != nil {
		m.t.Fatal(err)
	}
	m.workers[id] = wk
	m.dropLost()
}

func (m *shed) leave() {
	if m.rnd.IntN(3) > 0 {
		return
	}
	id := m.rnd.Uint64N(4)
	_, _ = m.DeleteWorker(id) // it may not exist
	delete(m.workers, id)
	m.dropLost()
}

// dropLost forgets the bookings on ranks that went. Which ranks an incomplete
// worker keeps is not this model's business: the service shows them.
func (m *shed) dropLost() {
	clear(m.carried)
	for _, sc := range m.Loads(nil, nil) {
		for _, l := range sc.Loads {
			m.carried[l.Rank] = true
		}
	}
	for id, wk := range m.workers {
		for dp := range wk.ranks {
			if r := (catalog.Rank{Worker: id, DP: dp}); wk.ready && !m.carried[r] {
				m.t.Errorf("rank %v of a ready worker is not carried", r)
			}
		}
	}
	maps.DeleteFunc(m.live, func(_ string, b *shedBooking) bool { return !m.carried[b.rank] })
}

func (m *shed) limit() {
	var given overload.Thresholds
	eighths, tokens, quarters := m.eighths, m.tokens, m.quarters
	if m.rnd.IntN(2) == 0 {
		eighths = m.rnd.IntN(9)
		given.DecodeBlocks = new(float64(eighths) / 8)
	}
	if m.rnd.IntN(2) == 0 {
		tokens = m.rnd.IntN(40)
		given.PrefillTokens = new(uint64(tokens))
	}
	if m.rnd.IntN(2) == 0 {
		quarters = m.rnd.IntN(9)
		given.PrefillFraction = new(float64(quarters) / 4)
	}
	_, err := m.SetBusyThreshold(scope.Model, given)
	if len(m.workers) == 0 && given.Any() {
		wantError(m.t, err, contract.NotFound, "Model 'm' not found. Thresholds can only be set for discovered models.")
		return
	}
	if err != nil {
		m.t.Error(err)
	}
	m.eighths, m.tokens, m.quarters = eighths, tokens, quarters
}

func (m *shed) unlimit() {
	if len(m.workers) == 0 {
		return
	}
	var which *string
	switch m.rnd.IntN(4) {
	case 0:
		which, m.eighths = new("active_decode_blocks_threshold"), -1
	case 1:
		which, m.tokens = new("active_prefill_tokens_threshold"), -1
	case 2:
		which, m.quarters = new("active_prefill_tokens_threshold_frac"), -1
	default:
		m.eighths, m.tokens, m.quarters = -1, -1, -1
	}
	if _, err := m.ClearBusyThreshold(scope.Model, which); err != nil {
		m.t.Error(err)
	}
}

// chain is a prompt of up to 5 blocks; two of the same chain share the beginning.
func (m *shed) chain() []uint64 {
	all := []uint64{11, 12, 13, 14, 15}
	for i := range all {
		all[i] += 100 * uint64(1+len(m.live)%3)
	}
	return all[:m.rnd.IntN(6)]
}

func (m *shed) rank() catalog.Rank {
	return catalog.Rank{Worker: m.rnd.Uint64N(4), DP: m.rnd.Uint32N(3)}
}

func (m *shed) name() string {
	m.next++
	return fmt.Sprint("b", m.next)
}

func (m *shed) reserve() {
	b := &shedBooking{rank: m.rank(), hashes: m.chain(), prefill: m.rnd.Uint64N(20)}
	id := m.name()
	_, err := m.Reserve(&selecting.ReserveRequest{
		Scope: scope, ID: id, Rank: b.rank, EffectivePrefillTokens: &b.prefill,
		Prompt: selecting.Prompt{SequenceHashes: b.hashes, HasSequenceHashes: true, ISLTokens: 20, HasISLTokens: true},
	})
	wk := m.workers[b.rank.Worker]
	if known := wk.ready && b.rank.DP < wk.ranks; known != (err == nil) {
		m.t.Errorf("reserve on %v, known %t: %v", b.rank, known, err)
	}
	if err == nil {
		m.live[id] = b
	}
}

func (m *shed) slotsAdd() {
	b := &shedBooking{rank: m.rank(), hashes: m.chain(), prefill: m.rnd.Uint64N(20), slots: true}
	id := m.name()
	err := m.SlotsAdd(adding(id, b.rank.Worker, b.rank.DP, b.prefill, b.hashes...))
	if known := m.carried[b.rank]; known != (err == nil) {
		m.t.Errorf("add on %v, known %t: %v", b.rank, known, err)
	}
	if err == nil {
		m.live[id] = b
	}
}

// one returns any booking, "" if there is none.
func (m *shed) one() (string, *shedBooking) {
	ids := slices.Sorted(maps.Keys(m.live))
	if len(ids) == 0 {
		return "", nil
	}
	id := ids[m.rnd.IntN(len(ids))]
	return id, m.live[id]
}

func (m *shed) complete() {
	if id, b := m.one(); b != nil {
		m.followUp(id, b, m.PrefillComplete, m.SlotsPrefillComplete)
		b.prefill = 0
	}
}

func (m *shed) end() {
	if id, b := m.one(); b != nil {
		m.followUp(id, b, m.Free, m.SlotsFree)
		delete(m.live, id)
	}
}

// followUp follows a booking up through the contract that it was made by.
func (m *shed) followUp(id string, b *shedBooking, own func(string) error, slots func(catalog.Scope, string) error) {
	var err error
	if b.slots {
		err = slots(scope, id)
	} else {
		err = own(id)
	}
	if err != nil {
		m.t.Errorf("booking %s: %v", id, err)
	}
}

func (m *shed) output() {
	id, b := m.one()
	if b == nil || b.slots {
		return
	}
	if err := m.OutputBlock(id, nil); err != nil {
		m.t.Error(err)
	}
	b.output++
}

// load sums the bookings of a rank up.
func (m *shed) load(r catalog.Rank) (prefill, blocks, requests uint64) {
	distinct := map[uint64]bool{}
	for _, b := range m.live {
		if b.rank != r {
			continue
		}
		prefill += b.prefill
		blocks += b.output
		requests++
		for _, h := range b.hashes {
			distinct[h] = true
		}
	}
	return prefill, blocks + uint64(len(distinct)), requests
}

func (m *shed) check() {
	m.t.Helper()
	var want []string
	for _, r := range slices.SortedFunc(maps.Keys(m.carried), catalog.Rank.Compare) {
		prefill, blocks, requests := m.load(r)
		want = append(want, fmt.Sprintf("%d/%d: %d %d %d", r.Worker, r.DP, prefill, blocks, requests))
	}
	m.wantLoad(strings.Join(want, ", "))
}

// exceeded returns the thresholds that a rank exceeds, by their place.
func (m *shed) exceeded(r catalog.Rank) (causes [3]bool) {
	wk := m.workers[r.Worker]
	prefill, blocks, _ := m.load(r)
	causes[0] = m.eighths >= 0 && wk.total > 0 && 8*blocks > uint64(m.eighths)*wk.total
	causes[1] = m.tokens >= 0 && prefill > uint64(m.tokens)
	causes[2] = m.quarters >= 0 && wk.batched > 0 && prefill > uint64(m.quarters)*wk.batched/4
	return causes
}

// predict returns what a request is answered with: an error's text with the
// causes, or the ranks to choose from.
func (m *shed) predict(req *selecting.SelectRequest) (text string, ranks []catalog.Rank) {
	ready, found, free := false, false, false
	var causes [3]bool
	for _, id := range slices.Sorted(maps.Keys(m.workers)) {
		wk := m.workers[id]
		if !wk.ready {
			continue
		}
		ready = true
		switch p := req.Pinned; {
		case req.HasAllowedWorkers && !slices.Contains(req.AllowedWorkers, id),
			len(req.RequiredTaints) > 0 && !wk.tainted,
			p != nil && (p.Worker != id || p.DP >= wk.ranks):
			continue
		}
		found = true
		var own []catalog.Rank
		busy := true
		for dp := range wk.ranks {
			r := catalog.Rank{Worker: id, DP: dp}
			own = append(own, r)
			why := m.exceeded(r)
			busy = busy && why != [3]bool{}
			for i := range why {
				causes[i] = causes[i] || why[i]
			}
		}
		if !busy {
			free = true
			ranks = append(ranks, own...)
		}
	}
	switch {
	case !ready:
		return "no schedulable workers are available", nil
	case !found:
		return "no endpoints available to route work", nil
	case free && req.Pinned != nil:
		return "", []catalog.Rank{*req.Pinned}
	case free:
		return "", ranks
	case req.Pinned != nil:
		return fmt.Sprintf("pinned worker %d is overloaded %v", req.Pinned.Worker, causes), nil
	}
	return fmt.Sprintf("all eligible workers are overloaded %v", causes), nil
}

func (m *shed) choose() {
	hashes, size := m.chain(), 1+m.rnd.Uint64N(20)
	pinned, allowed := m.rank(), []uint64{m.rnd.Uint64N(4), m.rnd.Uint64N(4)}
	form := m.rnd.IntN(4)
	tainted := m.rnd.IntN(3) == 0
	request := func() *selecting.SelectRequest {
		req := &selecting.SelectRequest{Scope: scope, Override: selector.Override{Temperature: new(1e6)}, Prompt: selecting.Prompt{
			BlockHashes: hashes, HasBlockHashes: true, SequenceHashes: hashes, HasSequenceHashes: true, ISLTokens: size, HasISLTokens: true,
		}}
		if form == 1 {
			req.Pinned = &pinned
		}
		if form == 2 {
			allow(allowed...)(req)
		}
		if tainted {
			req.RequiredTaints = []string{"x"}
		}
		return req
	}
	text, ranks := m.predict(request())
	verify := func(sel selecting.Selection, err error) {
		m.t.Helper()
		switch got := told(err); {
		case got != text:
			m.t.Errorf("answered %q, want %q", got, text)
		case err == nil && !slices.Contains(ranks, sel.Rank):
			m.t.Errorf("%v was chosen of %v", sel.Rank, ranks)
		}
	}
	verify(m.Select(context.Background(), request(), false))
	m.CheckOverloadLate(scope, true)
	verify(m.Select(context.Background(), request(), false))
	m.CheckOverloadLate(scope, false)
	if m.rnd.IntN(2) == 0 {
		sel, err := m.Select(context.Background(), request(), true)
		verify(sel, err)
		if err == nil {
			m.live[*sel.ReservationID] = &shedBooking{rank: sel.Rank, hashes: hashes, prefill: size}
		}
	}
}

// told is the text of an error with the causes of an overload.
func told(err error) string {
	if err == nil {
		return ""
	}
	var over *contract.OverloadError
	if !errors.As(err, &over) {
		return err.Error()
	}
	var causes [3]bool
	for i := range causes {
		causes[i] = over.Causes.Has(overload.Threshold(i))
	}
	return fmt.Sprintf("%v %v", err, causes)
}
