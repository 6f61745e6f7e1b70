package service

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// switchStreams brings a worker's open event streams to those of an attachment,
// nil for none. If one cannot be opened, the others are as before again.
func (s *Service) switchStreams(w *attached, a *catalog.Attachment) error {
	wanted := make(map[uint32]kvevents.StreamConfig)
	if a != nil {
		replays := make(map[string]int) // ranks by replay endpoint
		for _, st := range a.Streams {
			replays[st.Replay]++
		}
		for i, st := range a.Streams {
			c := w.stream(a.Worker, st)
			c.SharedReplay = replays[st.Replay] > 1
			if err := s.follow(w, c); err != nil {
				s.unfollow(w, wanted, a.Streams[:i])
				return err
			}
			wanted[st.DP] = c
		}
	}
	for dp, c := range w.streams {
		if _, kept := wanted[dp]; !kept {
			s.streams.Remove(c.Rank)
		}
	}
	w.streams = wanted
	return nil
}

// follow opens a stream, or changes the one that the rank has.
func (s *Service) follow(w *attached, c kvevents.StreamConfig) error {
	was, open := w.streams[c.Rank.DP]
	switch {
	case !open:
		return s.streams.Add(c)
	case was == c:
		return nil
	}
	return s.streams.Update(c)
}

// unfollow undoes what follow did for the given streams.
func (s *Service) unfollow(w *attached, now map[uint32]kvevents.StreamConfig, done []catalog.Stream) {
	for _, st := range done {
		c := now[st.DP]
		was, open := w.streams[st.DP]
		switch {
		case !open:
			s.streams.Remove(c.Rank)
		case was != c:
			if err := s.streams.Update(was); err != nil {
				s.log.Error().Err(err).Stringer("rank", c.Rank).Str("endpoint", was.Endpoint).
					Msg("kv event stream could not be opened again")
			}
		}
	}
}

// stream describes a stream. One from the same publisher keeps its applier, and
// with it what the stream's events have taught that.
func (w *attached) stream(worker uint64, st catalog.Stream) kvevents.StreamConfig {
	c := kvevents.StreamConfig{
		Rank:     catalog.Rank{Worker: worker, DP: st.DP},
		Endpoint: st.Endpoint,
		Replay:   st.Replay,
	}
	if was, open := w.streams[st.DP]; open && was.Endpoint == st.Endpoint {
		c.Applier = was.Applier
	} else {
		converter := kvevents.NewConverter(w.layout, st.DP, w.slots.slot)
		converter.Seeds = w.scope.Seeds
		c.Applier = &kvevents.IndexApplier{
			Converter: converter,
			Index:     w.scope.Gate,
			Slot:      st.Slot,
		}
	}
	return c
}

// renewAppliers gives every stream a new applier that knows what the old one
// knew. When it returns the old ones are not used any more: no batch is under
// way that has read an earlier slot table.
func (s *Service) renewAppliers(w *attached) {
	for dp, c := range w.streams {
		applier := *c.Applier.(*kvevents.IndexApplier)
		c.Applier = &applier
		w.streams[dp] = c
		_ = s.streams.Update(c) // fails only once all streams have ended
	}
}
