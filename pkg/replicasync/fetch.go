package replicasync

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// fetchSnapshot reads all pages of a peer's snapshot into the ledger.
func (r *Replica) fetchSnapshot(ctx context.Context, q fetchRequest) fetchResult {
	m := r.newMerge(q)
	for m.unfinished() {
		if err := r.fetchPage(ctx, m); err != nil {
			return m.failed(err)
		}
	}
	return m.result
}

func (r *Replica) fetchPage(ctx context.Context, m *snapshotMerge) error {
	body, err := r.fetch.Get(ctx, m.pageURL(r.opt.Page))
	if err != nil {
		return err
	}
	err = m.pages.page(body)
	if closing := body.Close(); err == nil {
		err = closing
	}
	return err
}

// snapshotMerge joins one snapshot into the ledger while it is read.
type snapshotMerge struct {
	replica *Replica
	request fetchRequest
	pages   pageReader
	began   time.Time // when the page began to arrive: its ages are not younger
	result  fetchResult
}

func (r *Replica) newMerge(q fetchRequest) *snapshotMerge {
	m := &snapshotMerge{replica: r, request: q}
	m.pages.sink = m
	return m
}

// unfinished: there is a page to read.
func (m *snapshotMerge) unfinished() bool { return m.pages.pages == 0 || m.pages.more }

func (m *snapshotMerge) failed(err error) fetchResult {
	m.result.err = err
	return m.result
}

// pageURL is the address of the next page.
func (m *snapshotMerge) pageURL(limit int) string {
	u := m.request.url + SnapshotPath + "?limit=" + strconv.Itoa(limit)
	if m.pages.more {
		u += "&after=" + url.QueryEscape(m.pages.next)
	}
	return u
}

// head is part of snapshotSink. The first page's number counts: the later ones
// cover events whose bookings may have been on pages before.
func (m *snapshotMerge) head(process, sequence uint64) error {
	if process != m.request.process {
		return fmt.Errorf("process %d answered for %d", process, m.request.process)
	}
	if m.pages.pages == 1 {
		m.result.sequence = sequence
	}
	m.began = m.replica.now()
	return nil
}

// renewals is part of snapshotSink. The first page's number counts, as in head.
func (m *snapshotMerge) renewals(sequence uint64) {
	if m.pages.pages == 1 {
		m.result.renewals = sequence
	}
}

// ended is part of snapshotSink.
func (m *snapshotMerge) ended(process uint64, ended history.EndedSet) {
	n := m.replica.core.ledger.MergeEnded(process, ended)
	m.replica.counts.endedBySnapshot.Add(uint64(n))
	m.replica.core.countLearned(n)
}

// booking is part of snapshotSink.
func (m *snapshotMerge) booking(j *reservationJSON) error {
	b, err := j.reservation(m.replica.now().Sub(m.began))
	if err != nil {
		return err
	}
	switch size, known := m.replica.scopes.BlockSize(b.Scope); {
	case !known:
		m.result.refused = true
		return nil
	case size != j.BlockSize:
		return nil
	}
	switch m.replica.core.ledger.MergeReservation(b) {
	case reservations.Applied:
		m.replica.counts.adopted.Add(1)
		m.replica.core.countLearned(1)
	case reservations.Updated:
		m.replica.counts.completedBySnapshot.Add(1)
		m.replica.core.countLearned(1)
	case reservations.UnknownScope, reservations.UnknownRank:
		m.result.refused = true
	}
	return nil
}
