package replicasync

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// The hostile peer of the simulation follows no rules. It is believed about its own
// reservations, so it books them on a rank that no replica has: the oracle does not know
// them, and demands that all others agree as if the hostile peer were not there.

const hostileHost = 9

var hostileRank = catalog.Rank{Worker: 99}

const hostilePeer = "tcp://host9:5"

// contestedLedger tells the oracle of which processes' numbers a replica has forgotten,
// or learned from the hostile peer.
type contestedLedger struct {
	ledger
	w *simWorld
}

func (c contestedLedger) Bind(process uint64, peer string) {
	if peer == hostilePeer {
		c.w.oracle.deceived[process] = true
	}
	c.ledger.Bind(process, peer)
}

func (c contestedLedger) Unbind(process uint64) {
	c.w.oracle.disputed[process] = true
	c.ledger.Unbind(process)
}

// attack sends some messages to a replica.
func (w *simWorld) attack(to *simNode) {
	victim := w.nodes[w.rnd.IntN(len(w.nodes))].process
	number := []uint64{1, w.rnd.Uint64N(50), 1 << 61, maxSequence, 1 << 24, 1 << 20}[w.rnd.IntN(6)]
	if w.lifeOfLies == 0 || w.rnd.IntN(5) == 0 {
		w.lifeOfLies = w.rnd.Uint64() | 1
	}
	sender := []uint64{victim, w.lifeOfLies, w.rnd.Uint64() | 1}[w.rnd.IntN(3)]
	w.tracef("attack on node %d as %x: number %d of %x", to.index, sender, number, victim)
	for i := range 1 + w.rnd.Uint64N(20) {
		switch w.rnd.IntN(4) {
		case 0:
			a := announcement{
				process: sender, url: fmt.Sprintf("http://host%d:1", hostileHost), sequence: number, merged: i,
				renewals: number,
			}
			if w.rnd.IntN(3) == 0 { // of another replica, as if this was the endpoint of the same
				a.url = to.w.nodes[w.rnd.IntN(len(w.nodes))].r.opt.URL
			}
			w.assault(to, TopicAnnounce, newEncoder().announcement(a))
		default:
			e := event{
				kind: kind(w.rnd.IntN(numKinds)), sender: sender, sequence: min(maxSequence, number+i),
				origin: reservations.Origin{Process: victim, Sequence: 1 + w.rnd.Uint64N(60)},
				scope:  simA, blockSize: simBlockSize, id: "guess", rank: hostileRank,
			}
			if e.kind != booked {
				e.rank = simRanks[0].rank
			}
			w.assault(to, e.kind.topic(), newEncoder().event(&e))
		}
	}
}

func (w *simWorld) assault(to *simNode, topic string, payload []byte) {
	life, payload := to.life, bytes.Clone(payload)
	w.after(w.delay(), func() {
		if to.life == life && !to.dead {
			to.r.applyMessage(to.dec, hostilePeer, topic, payload)
			to.look()
		}
	})
}

// lie answers a fetch: everything of everybody has ended, and what is live is old.
func (w *simWorld) lie(n *simNode, q fetchRequest) {
	m := n.r.newMerge(q)
	ended, assumed, freed := make(map[string]any), make(map[string]any), make(map[string]any)
	for _, o := range w.nodes {
		key := fmt.Sprint(o.process)
		ended[key], assumed[key], freed[key] = [][2]uint64{{1, 1 << 61}}, 0, [][2]uint64{{1, 4711}, {2, 4711}}
	}
	var lies []json.RawMessage
	page, _, _ := n.l.Reservations(reservations.Cursor{}, 100)
	for _, b := range page {
		if b.Origin.Process != n.process && !n.r.core.identities[b.Origin.Process].speaks() {
			continue
		}
		b.Age, b.Lease, b.Renewed, b.PrefillDone = lifetime-time.Millisecond, 0, 0, false
		if w.rnd.IntN(2) == 0 {
			b.PrefillDone, b.Rank = true, hostileRank
		}
		text, err := json.Marshal(toJSON(&b, simBlockSize))
		if err != nil {
			w.failf("%v", err)
		}
		lies = append(lies, text)
	}
	text, err := json.Marshal(map[string]any{
		"process_id": q.process, "sequence": []uint64{0, 1 << 61, 1 << 20}[w.rnd.IntN(3)], "renewals": uint64(1) << 61,
	})
	if err != nil {
		w.failf("%v", err)
	}
	rest, err := json.Marshal([]any{assumed, ended, ended, freed, append([]json.RawMessage{}, lies...)})
	if err != nil {
		w.failf("%v", err)
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(rest, &parts); err != nil {
		w.failf("%v", err)
	}
	answer := fmt.Sprintf(`%s,"freed":%s,"assumed":%s,"ended":%s,"leases_ended":%s,"bookings":%s,"next":null}`,
		text[:len(text)-1], parts[3], parts[0], parts[1], parts[2], parts[4])
	life := n.life
	w.after(w.delay(), func() {
		if n.life != life {
			return
		}
		err := m.pages.page(bytes.NewReader([]byte(answer)))
		if w.rnd.IntN(3) == 0 {
			err = errors.New("no answer")
		}
		m.result.err = err
		w.tracef("node %d reads lies of %x: %v", n.index, q.process, err)
		n.r.core.fetchDone(q, m.result, w.now)
		n.look()
	})
}

// TestDispute proves that two endpoints which are both confirmed for a process can
// neither end what the other one has told nor silence it, whoever came first, and that
// the process is believed again when one is left.
func TestDispute(t *testing.T) {
	for _, first := range []string{"honest", "impostor"} {
		b := newBench(fixedScopes{benchScope: 16})
		honest, impostor := "tcp://p:1", "tcp://x:1"
		show := func(peer string, sequence uint64) {
			t.Helper()
			b.onAnnouncement(peer, announcement{process: 2, url: "http://" + peer[6:], sequence: sequence}, b.now)
			b.now = b.now.Add(2 * time.Second)
			requests, _ := b.due(b.now)
			for _, q := range requests {
				n := sequence
				if q.peer != peer {
					n = 10
				}
				b.fetchDone(q, fetchResult{sequence: n, err: b.confirm(q, n, "")}, b.now)
			}
		}
		if first == "impostor" {
			show(impostor, maxSequence)
		}
		show(honest, 10)
		b.booked(2, 11)
		if first == "honest" {
			show(impostor, maxSequence)
		}
		q := fetchRequest{process: 2, peer: impostor}
		if got := b.authorityAbout(q, 2); got != reservations.Relayed {
			t.Errorf("%s first: the impostor is believed: %v", first, got)
		}
		b.onEvent(impostor, &event{
			kind: freed, sender: 2, sequence: maxSequence - 1, origin: reservations.Origin{Process: 2, Sequence: 11},
			scope: benchScope, blockSize: 16, id: "guess", rank: benchRank,
		}, b.now)
		if n := b.ledger.MergeEnded(3, history.EndedSet{Ranges: []history.Range{{From: 1, To: 99}}}); n != 0 {
			t.Errorf("%s first: %d ended", first, n)
		}
		b.booked(2, 12) // the same id: of another origin
		if n := b.ledger.Stats().Live; n != 2 {
			t.Errorf("%s first: %d live during the dispute, want 2", first, n)
		}
		b.forgetPeer(impostor)
		if got := b.authorityAbout(fetchRequest{process: 2, peer: honest}, 2); got != reservations.ByOwner {
			t.Errorf("%s first: the process itself is not believed afterwards: %v", first, got)
		}
		b.booked(2, 13)
		if n := b.ledger.Stats().Live; n != 3 {
			t.Errorf("%s first: %d live, want 3", first, n)
		}
	}
}

// TestImpostorFirst proves that what an impostor has ended by number, as a process that
// had not been heard yet, is live again once the process itself is heard, but for what
// a caller has freed.
func TestImpostorFirst(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	honest, impostor, third := "tcp://p:1", "tcp://x:1", "tcp://t:1"
	hear := func(peer string, process uint64) (asked []string) {
		t.Helper()
		b.onAnnouncement(peer, announcement{process: process, url: "http://" + peer[6:], sequence: 10}, b.now)
		b.now = b.now.Add(fetchSpacing)
		requests, _ := b.due(b.now)
		for _, q := range requests {
			asked = append(asked, q.peer)
			b.fetchDone(q, fetchResult{sequence: 10, err: b.confirm(q, 10, "")}, b.now)
		}
		return asked
	}
	told := func(peer string, teller uint64) (live uint64) { // the snapshot of a peer has all three
		for n := range uint64(3) {
			b.ledger.MergeReservation(reservations.Reservation{
				Authority: b.authorityAbout(fetchRequest{process: teller, peer: peer}, 2), Peer: peer, Origin: reservations.Origin{Process: 2, Sequence: 1 + n},
				Scope: benchScope, ID: fmt.Sprint(n), Rank: benchRank,
			})
		}
		return b.ledger.Stats().Live
	}
	hear(third, 3)
	if live := told(third, 3); live != 3 {
		t.Fatalf("%d live before, want 3", live)
	}
	freeing := &event{
		kind: freed, sender: 3, sequence: 11, origin: reservations.Origin{Process: 2, Sequence: 1},
		scope: benchScope, blockSize: 16, id: "0", rank: benchRank,
	}
	b.onEvent(third, freeing, b.now)

	hear(impostor, 2)
	b.ledger.MergeEnded(2, history.EndedSet{Ranges: []history.Range{{From: 1, To: maxJump}}})
	freeing.sequence, freeing.origin.Sequence, freeing.id = 12, 2, "1" // of what has ended by number
	b.onEvent(third, freeing, b.now)
	if live := told(third, 3); live != 0 {
		t.Fatalf("%d live while the impostor is believed", live)
	}

	hear(honest, 2)
	if asked := hear(honest, 2); !slices.Contains(asked, third) {
		t.Errorf("asks %v for what has ended wrongly, want all", asked)
	}
	if live := told(honest, 2); live != 1 {
		t.Errorf("%d live in the dispute, want the one that nobody has freed", live)
	}
	b.forgetPeer(impostor)
	if live := told(honest, 2); live != 1 {
		t.Errorf("%d live after the dispute, want 1", live)
	}
}
