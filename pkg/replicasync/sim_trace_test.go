package replicasync

import (
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// tracedLedger writes down what a node's ledger is told, and what it says.
type tracedLedger struct {
	ledger
	n *simNode
}

func (t tracedLedger) ApplyBooked(b reservations.Reservation) reservations.ApplyResult {
	v := t.ledger.ApplyBooked(b)
	t.n.w.tracef("  node %d books %s %x:%d: %v", t.n.index, b.ID, b.Origin.Process, b.Origin.Sequence, v)
	return v
}

func (t tracedLedger) ApplyFreed(r reservations.Ref) reservations.ApplyResult {
	v := t.ledger.ApplyFreed(r)
	t.n.w.tracef("  node %d frees %s %x:%d: %v", t.n.index, r.ID, r.Origin.Process, r.Origin.Sequence, v)
	return v
}

func (t tracedLedger) ApplyPrefillCompleted(r reservations.Ref) reservations.ApplyResult {
	v := t.ledger.ApplyPrefillCompleted(r)
	t.n.w.tracef("  node %d completes %s %x:%d: %v", t.n.index, r.ID, r.Origin.Process, r.Origin.Sequence, v)
	return v
}

func (t tracedLedger) MergeReservation(b reservations.Reservation) reservations.ApplyResult {
	v := t.ledger.MergeReservation(b)
	t.n.w.tracef("  node %d merges %s %x:%d (age %v, done %v, lease %v, renewed %v): %v",
		t.n.index, b.ID, b.Origin.Process, b.Origin.Sequence, b.Age, b.PrefillDone, b.Lease, b.Renewed, v)
	return v
}

func (t tracedLedger) ApplyRenewed(r reservations.Ref) reservations.ApplyResult {
	v := t.ledger.ApplyRenewed(r)
	t.n.w.tracef("  node %d renews %s %x:%d: %v", t.n.index, r.ID, r.Origin.Process, r.Origin.Sequence, v)
	return v
}

func (t tracedLedger) MergeEnded(process uint64, ended history.EndedSet) int {
	freed := t.ledger.MergeEnded(process, ended)
	t.n.w.tracef("  node %d merges the ended ones of %x, %v: %d end", t.n.index, process, ended, freed)
	return freed
}

func (t tracedLedger) MergeFreed(teller uint64, names []history.Name) (int, []history.Name) {
	freed, fresh := t.ledger.MergeFreed(teller, names)
	t.n.w.tracef("  node %d merges names from %x, %x: %d end, %x are new", t.n.index, teller, names, freed, fresh)
	return freed, fresh
}

func (t tracedLedger) Bind(process uint64, peer string) {
	t.n.w.tracef("  node %d believes %s as %x", t.n.index, peer, process)
	t.ledger.Bind(process, peer)
}

func (t tracedLedger) Unbind(process uint64) {
	t.n.w.tracef("  node %d does not know who is %x", t.n.index, process)
	t.ledger.Unbind(process)
}
