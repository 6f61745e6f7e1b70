package replicasync

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// batch is how many events or messages are taken from a queue at a time.
	batch = 256
	// earlyAnnounceEvery is the minimum interval of announcements that are sent because
	// something was learned.
	earlyAnnounceEvery = 100 * time.Millisecond
)

// Run sends, applies and fetches until ctx ends. Then it stops following the peers and
// returns nil; no goroutine of it is left. It must be called once only.
func (r *Replica) Run(ctx context.Context) error {
	defer r.close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { r.send(ctx); return nil })
	g.Go(func() error { r.applyAll(ctx); return nil })
	g.Go(func() error { r.catchUp(ctx, g); return nil })
	return g.Wait()
}

func (r *Replica) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	for _, endpoint := range slices.Sorted(maps.Keys(r.peers)) {
		r.unfollow(r.peers[endpoint])
	}
}

// send publishes the outbox, and an announcement every second.
func (r *Replica) send(ctx context.Context) {
	enc, full := newEncoder(), newEncoder()
	buf := make([]event, 0, batch)
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	early := time.NewTicker(earlyAnnounceEvery)
	defer early.Stop()
	r.announce(enc)
	for {
		ready := (<-chan struct{})(r.outbox.queue.ready)
		if buf = r.outbox.take(buf); len(buf) > 0 {
			r.publish(enc, full, buf)
			clear(buf)
			ready = alwaysReady // there may be more
		}
		select {
		case <-ctx.Done():
			r.sendRest(enc, full, buf)
			return
		case <-tick.C:
			r.announce(enc)
		case <-early.C:
			if r.counts.unannounced.Swap(false) {
				r.announce(enc)
			}
		case <-ready:
		}
	}
}

// alwaysReady is a channel that can always be read.
var alwaysReady = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// sendRest publishes the events that still wait, until the first failure.
func (r *Replica) sendRest(enc, full *encoder, buf []event) {
	for {
		if buf = r.outbox.take(buf); len(buf) == 0 {
			return
		}
		if !r.publish(enc, full, buf) {
			return
		}
	}
}

// publish sends events in order. It returns false if the last one could not be sent. full is for
// reservations with a prefix, for followers that do not know that.
func (r *Replica) publish(enc, full *encoder, events []event) (ok bool) {
	for i := range events {
		e := &events[i]
		prefixed := e.prefix.Blocks > 0
		var payload []byte
		switch {
		case e.payload != nil:
			payload = e.payload
		case prefixed:
			payload = enc.reservation(e)
		default:
			payload = enc.event(e)
		}
		if ok = len(payload) <= MaxPayload; !ok {
			r.counts.drop(dropSendOversized)
			continue
		}
		var err error
		if prefixed {
			err = r.transport.PublishEither(TopicReservations, payload, TopicEvents, func() []byte { return r.listed(full, e) })
		} else {
			err = r.transport.Publish(e.kind.topic(), payload)
		}
		if ok = err == nil; !ok {
			r.counts.drop(dropSendFailed)
			continue
		}
		r.counts.sent[e.kind].Add(1)
	}
	return ok
}

// listed returns the message with all blocks, or nil if that is too long.
func (r *Replica) listed(enc *encoder, e *event) []byte {
	payload := enc.event(e)
	if len(payload) > MaxPayload {
		r.counts.drop(dropSendOversized)
		return nil
	}
	return payload
}

// announce publishes which numbers the events before it have used.
func (r *Replica) announce(enc *encoder) {
	err := r.transport.Publish(TopicAnnounce, enc.announcement(r.announcement()))
	if err == nil {
		r.counts.sentAnnouncements.Add(1)
	} // else the next one says the same
}

func (r *Replica) announcement() announcement {
	a := announcement{process: r.opt.Process, url: r.opt.URL, merged: r.counts.merged.Load()}
	a.sequence, a.renewals = r.outbox.published()
	return a
}

// receive is called by the transport.
func (r *Replica) receive(m message) {
	switch {
	case len(m.payload) > MaxPayload:
		r.counts.drop(dropOversized)
	case !r.inbox.put(m, len(m.payload)):
		r.counts.drop(dropQueueFull)
	}
}

// applyAll applies what the peers have published, in the order of its arrival.
func (r *Replica) applyAll(ctx context.Context) {
	in := newReader()
	buf := make([]message, 0, batch)
	for {
		buf = r.inbox.take(buf, func(m *message) int { return len(m.payload) })
		for i := range buf {
			if m := &buf[i]; !m.from.deregistered.Load() {
				r.applyMessage(in, m.from.endpoint, m.topic, m.payload)
			}
			buf[i] = message{}
		}
		if len(buf) > 0 {
			r.wakeFetches()
			if ctx.Err() == nil {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-r.inbox.ready:
		}
	}
}

// applyMessage decodes and applies one message.
func (r *Replica) applyMessage(in *reader, endpoint, topic string, payload []byte) {
	var e event
	var a announcement
	var err error
	switch topic {
	case TopicSessions, TopicSessionEnds:
		r.applySession(in, endpoint, topic, payload)
		return
	case TopicServed:
		r.applyServed(in, payload)
		return
	case TopicEvents:
		e, err = in.event(payload)
	case TopicReservations:
		e, err = in.reservation(payload)
	case TopicLeases:
		e, err = in.renewal(payload)
	case TopicAnnounce:
		a, err = in.announcement(payload)
	default:
		err = errTopic
	}
	if err != nil {
		r.counts.drop(reasonOfError(err))
		return
	}
	r.coreMu.Lock()
	defer r.coreMu.Unlock()
	if topic == TopicAnnounce {
		r.core.onAnnouncement(endpoint, a, r.now())
	} else {
		r.core.onEvent(endpoint, &e, r.now())
	}
}

var errTopic = errors.New("unknown topic")

func reasonOfError(err error) reason {
	switch {
	case errors.Is(err, errOversized):
		return dropOversized
	case errors.Is(err, errNamesDiffer):
		return dropNamesDiffer
	}
	return dropMalformed
}

// catchUp fetches snapshots when they are due.
func (r *Replica) catchUp(ctx context.Context, g *errgroup.Group) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.wake:
		}
		requests, wait := r.dueNow()
		for _, q := range requests {
			g.Go(func() error { r.catchUpFrom(ctx, q); return nil })
		}
		timer.Reset(min(wait, r.report()))
	}
}

// dueNow returns the fetches to begin now, and the time until the next may be due.
func (r *Replica) dueNow() ([]fetchRequest, time.Duration) {
	now := r.now()
	r.coreMu.Lock()
	defer r.coreMu.Unlock()
	if r.newRanks.Swap(false) {
		r.core.onRanksAdded(now)
	}
	if r.opt.Reachable != nil {
		r.core.excuse(r.opt.Reachable, now)
	}
	requests, next := r.core.due(now)
	return requests, max(time.Millisecond, next.Sub(now))
}

func (r *Replica) catchUpFrom(ctx context.Context, q fetchRequest) {
	f := r.fetchSnapshot(ctx, q)
	r.coreMu.Lock()
	failures := r.core.fetchDone(q, f, r.now())
	r.coreMu.Unlock()
	r.wakeFetches()
	if r.opt.Watcher != nil && ctx.Err() == nil {
		r.opt.Watcher.Fetched(q.url, q.process, failures, f.err)
	}
}

// report tells the watcher of connections and losses, and returns the time until there
// may be something else to report.
func (r *Replica) report() time.Duration {
	if r.opt.Watcher == nil {
		return silentAfter
	}
	for _, p := range r.changedConnections() {
		r.opt.Watcher.Connected(p.endpoint, p.reportedUp)
	}
	now := r.now()
	r.coreMu.Lock()
	lost, next := r.core.losses(now)
	r.coreMu.Unlock()
	for _, l := range lost {
		r.opt.Watcher.Lost(l.peer, l.process, l.events)
	}
	return max(time.Millisecond, next.Sub(now))
}

// changedConnections returns the peers whose connection has come up or was lost, by
// endpoint.
func (r *Replica) changedConnections() (peers []*peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		if up := p.up.Load(); up != p.reportedUp {
			p.reportedUp = up
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b *peer) int { return cmp.Compare(a.endpoint, b.endpoint) })
	return peers
}
