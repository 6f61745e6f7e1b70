package service

import (
	"errors"
	"fmt"
	"slices"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// streamKey names a publisher's stream among those of all publishers.
func streamKey(p *conductor.Publisher) catalog.Rank { return catalog.Rank{Worker: p.ID, DP: p.Rank} }

// sharedReplay has the publishers with one replay endpoint that have a stream.
type sharedReplay struct {
	users []*conductor.Publisher
	// several: they have different endpoints, so answers are not for all of them.
	several bool
}

// followPublisher opens the stream of a new publisher. publishing must be held.
func (s *Service) followPublisher(p *conductor.Publisher) error {
	others := s.replays[p.Replay]
	several := others.several || len(others.users) > 0 && others.users[0].Endpoint != p.Endpoint
	err := s.conductorStreams.Add(publisherStream(p, several))
	switch {
	case errors.Is(err, kvevents.ErrClosed):
		return errClosing
	case err != nil:
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // without our name of the stream
		}
		return &contract.Error{
			Kind: contract.BadRequest, Text: fmt.Sprintf("cannot subscribe to `%s`: %v", p.Endpoint, err),
			Reason: reasonEndpoint, Field: "endpoint", Err: err,
		}
	}
	if p.Replay != "" {
		s.shareReplay(p.Replay, append(others.users, p))
	}
	return nil
}

// unfollowPublisher closes a publisher's stream. publishing must be held.
func (s *Service) unfollowPublisher(p *conductor.Publisher) {
	s.conductorStreams.Remove(streamKey(p)) // false: all have ended already
	if p.Replay != "" {
		is := func(o *conductor.Publisher) bool { return o == p }
		s.shareReplay(p.Replay, slices.DeleteFunc(s.replays[p.Replay].users, is))
	}
}

// shareReplay notes who has a replay endpoint now, and tells their streams if
// its answers have become, or are no longer, for some of them only.
func (s *Service) shareReplay(replay string, users []*conductor.Publisher) {
	if len(users) == 0 {
		delete(s.replays, replay)
		return
	}
	several := slices.ContainsFunc(users, func(p *conductor.Publisher) bool { return p.Endpoint != users[0].Endpoint })
	changed := several != s.replays[replay].several
	s.replays[replay] = sharedReplay{users, several}
	if !changed {
		return
	}
	for _, p := range users {
		_ = s.conductorStreams.Update(publisherStream(p, several)) // fails only once all streams have ended
	}
}

// publisherStream describes a publisher's stream. Several ranks of an engine can
// name one replay server, which has the messages of one of them: each takes only
// its own. Events of a cache backend are not told apart by the rank of their
// batch.
func publisherStream(p *conductor.Publisher, severalReplay bool) kvevents.StreamConfig {
	engine := p.Type == conductor.VLLM || p.Type == conductor.SGLang
	return kvevents.StreamConfig{
		Rank:         streamKey(p),
		Endpoint:     p.Endpoint,
		Replay:       p.Replay,
		SharedReplay: engine && severalReplay,
		Applier:      p,
	}
}
