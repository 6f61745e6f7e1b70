package doctor

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

const (
	// Window is how far back an examination looks where a fault shows in counts alone: what has
	// ended is not wrong any more. It may be a markEvery longer.
	Window    = 10 * time.Minute
	lately    = "the last 10 minutes" // the Window in sentences
	markEvery = time.Minute
)

// mark has the counts of a moment, without those that are 0.
type mark struct {
	at         time.Time
	streams    map[catalog.Rank]streamCounts
	publishers map[uint64]uint64 // undecodable messages by Publisher.ID
	gateway    gatewayCounts
}

// streamCounts are the counts of a stream that tell a fault.
type streamCounts struct{ lost, dropped, undecodable uint64 }

func countsOf(st *kvevents.StreamCounts) streamCounts {
	return streamCounts{lost: st.Lost, dropped: st.Dropped, undecodable: st.Undecodable}
}

// since returns what was counted after was. A stream that was added anew has begun at 0.
func (c streamCounts) since(was streamCounts) streamCounts {
	if c.lost < was.lost || c.dropped < was.dropped || c.undecodable < was.undecodable {
		return c
	}
	return streamCounts{c.lost - was.lost, c.dropped - was.dropped, c.undecodable - was.undecodable}
}

// gatewayCounts are those of a Gateway.
type gatewayCounts struct {
	failures, answers          uint64
	observed, predicted, apart float64
	booked, pieces             uint64 // through Envoy
}

func (d *Doctor) gatewayCounts() (c gatewayCounts) {
	if d.gateway != nil {
		c.failures = d.gateway.TokenizerFailures()
		c.answers, c.observed, c.predicted, c.apart = d.gateway.Cached()
		c.booked, c.pieces = d.gateway.Answers()
	}
	return c
}

// Run notes the counts of each minute until ctx ends. Without it examinations look at all that
// was counted since the start.
func (d *Doctor) Run(ctx context.Context) error {
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.mark()
		}
	}
}

// mark notes the present counts, and forgets those that no examination will ask for.
func (d *Doctor) mark() {
	m := &mark{at: d.now(), streams: make(map[catalog.Rank]streamCounts), publishers: make(map[uint64]uint64), gateway: d.gatewayCounts()}
	if d.parts.Streams != nil {
		for _, st := range d.parts.Streams.Streams() {
			if c := countsOf(&st.StreamCounts); c != (streamCounts{}) {
				m.streams[st.Rank] = c
			}
		}
	}
	for _, p := range d.parts.Publishers.Publishers() {
		if n := p.Status().Undecodable; n > 0 {
			m.publishers[p.ID] = n
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.marks); n > 0 && maps.Equal(d.marks[n-1].streams, m.streams) {
		m.streams = d.marks[n-1].streams // mostly nothing is new: share the memory
	}
	d.marks = append(d.marks, m)
	for len(d.marks) > 1 && m.at.Sub(d.marks[1].at) >= Window {
		d.marks = slices.Delete(d.marks, 0, 1)
	}
}

// before returns the counts at the beginning of the Window that ends now, all 0 if the process
// has begun later.
func (d *Doctor) before(now time.Time) *mark {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := new(mark)
	for _, m := range d.marks {
		if now.Sub(m.at) >= Window {
			was = m
		}
	}
	return was
}
