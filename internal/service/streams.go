package service

import (
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// switchStreams brings a worker's event streams from one attachment to the
// other; either may be nil. A stream that cannot be opened undoes what was done.
func (s *Service) switchStreams(w *attached, before, after *catalog.Attachment) error {
	var old, wanted []catalog.Stream
	if before != nil {
		old = before.Streams
	}
	if after != nil {
		wanted = after.Streams
	}
	for i, st := range wanted {
		if err := s.follow(w, after, st, old); err != nil {
			s.undoStreams(w, before, after, wanted[:i])
			return err
		}
	}
	for _, st := range old {
		if find(wanted, st.DP) == nil {
			s.streams.Remove(rankOf(before, st))
		}
	}
	return nil
}

// follow opens a stream, or changes the one that the rank has.
func (s *Service) follow(w *attached, a *catalog.Attachment, st catalog.Stream, old []catalog.Stream) error {
	was := find(old, st.DP)
	switch {
	case was == nil:
		return s.streams.Add(s.stream(w, a, st))
	case *was == st:
		return nil
	}
	return s.streams.Update(s.stream(w, a, st))
}

func (s *Service) undoStreams(w *attached, before, after *catalog.Attachment, done []catalog.Stream) {
	for _, st := range done {
		var was *catalog.Stream
		if before != nil {
			was = find(before.Streams, st.DP)
		}
		switch {
		case was == nil:
			s.streams.Remove(rankOf(after, st))
		case *was != st:
			if err := s.streams.Update(s.stream(w, before, *was)); err != nil {
				s.log.Error().Err(err).Uint64("worker_id", before.Worker).Uint32("dp_rank", st.DP).
					Msg("kv event stream could not be opened again")
			}
		}
	}
}

func find(in []catalog.Stream, dp uint32) *catalog.Stream {
	i := slices.IndexFunc(in, func(st catalog.Stream) bool { return st.DP == dp })
	if i < 0 {
		return nil
	}
	return &in[i]
}

func rankOf(a *catalog.Attachment, st catalog.Stream) catalog.Rank {
	return catalog.Rank{Worker: a.Worker, DP: st.DP}
}

func (s *Service) stream(w *attached, a *catalog.Attachment, st catalog.Stream) kvevents.StreamConfig {
	shared := 0
	for _, o := range a.Streams {
		if o.Replay == st.Replay {
			shared++
		}
	}
	return kvevents.StreamConfig{
		Rank:         rankOf(a, st),
		Endpoint:     st.Endpoint,
		Replay:       st.Replay,
		SharedReplay: shared > 1,
		Applier: &kvevents.IndexApplier{
			Converter: kvevents.NewConverter(w.pool.layout, st.DP, w.slots.slot),
			Index:     w.pool.space,
			Slot:      st.Slot,
		},
	}
}
