package describe

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/select-service/select-service/pkg/catalog"
)

const versionPath = "/version"

var errNoSources = errors.New("the engine does not describe its KV event sockets")

// other asks an engine that has metrics of its cache beside its list of models. An engine may deny
// one of them alone, such as all below /v1 without a key; one that gives neither is not described, and
// the error is noModels, that of the list. named: the caller says which engine it is, so that what it
// does not tell is assumed to be its default.
func (q *question) other(noModels error, named bool) error {
	cache, err := q.Cache(q.ctx, q.base, q.engine)
	switch {
	case err == nil:
		q.cache(cache)
	case noModels != nil:
		return noModels
	default:
		if statusOf(err) == http.StatusNotFound && q.engine.MetricsNeed != "" {
			err = fmt.Errorf("%w: %s", err, q.engine.MetricsNeed)
		}
		q.unknown(err, catalog.FieldBlockSize, catalog.FieldSize, catalog.FieldTotalKVBlocks)
	}
	var version struct {
		Version string `json:"version"`
	}
	if q.queryJSON(q.ctx, q.base, versionPath, &version) == nil && version.Version != "" {
		q.reported.Version = catalog.Clip(version.Version)
		if q.reported.Engine == "" {
			q.reported.Engine = catalog.EngineVLLM // others with this path are known by now
		}
	}
	err = q.sources()
	if errors.Is(err, errNoSources) && named && q.engine.EventsPort > 0 {
		err = q.defaultSockets()
	}
	if err != nil {
		q.unknown(err, catalog.FieldKVEventsEndpoints)
	}
	return nil
}

// cache takes over what the metrics say.
func (q *question) cache(c Cache) {
	q.reported.BlockSize = c.BlockSize
	q.set(catalog.FieldBlockSize, q.engine.MetricsPath)
	if c.Ranks > 0 {
		q.ranks(c.FirstRank, c.Ranks, q.engine.MetricsPath)
	}
	if c.Blocks > 0 {
		q.reported.TotalKVBlocks, q.reported.KVTokens = c.Blocks, c.Tokens
		q.set(catalog.FieldTotalKVBlocks, q.engine.MetricsPath)
	}
}

// defaultSockets assumes the event sockets that the engine has unless it is told others. It has no
// replay socket then.
func (q *question) defaultSockets() (err error) {
	q.reported.KVEventsEndpoints, err = q.endpoints("*", q.engine.EventsPort, q.reported.StartRank, max(q.reported.Size, 1))
	if err == nil {
		q.set(catalog.FieldKVEventsEndpoints, catalog.FromDefault)
	}
	return err
}

// source is one rank's publisher, with its own port.
type source struct {
	Endpoint string  `json:"endpoint"`
	Replay   *string `json:"replay_endpoint"`
}

// sources asks for the event sockets. An engine that does not know the question, or answers
// another one, gives errNoSources.
func (q *question) sources() error {
	path := q.engine.SourcesPath
	if path == "" {
		return errNoSources
	}
	var byRank map[string]source
	switch err := q.queryJSON(q.ctx, q.base, path, &byRank); {
	case err == nil && byRank != nil:
	case err == nil, statusOf(err) == http.StatusNotFound, statusOf(err) == http.StatusOK:
		return errNoSources
	default:
		return err
	}
	if len(byRank) == 0 {
		return notUnderstood(q.base, path, errNoEvents)
	}
	if len(byRank) > catalog.MaxRanks {
		return notUnderstood(q.base, path, fmt.Errorf("it names %d ranks, the maximum is %d", len(byRank), catalog.MaxRanks))
	}
	events, replays := make(map[uint32]string, len(byRank)), make(map[uint32]string)
	for text, s := range byRank {
		rank, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return errNoSources
		}
		dp := uint32(rank)
		if events[dp], err = q.socket(s.Endpoint); err != nil {
			return notUnderstood(q.base, path, err)
		}
		if s.Replay == nil || *s.Replay == "" {
			continue
		}
		if replays[dp], err = q.socket(*s.Replay); err != nil {
			return notUnderstood(q.base, path, err)
		}
	}
	q.reported.KVEventsEndpoints = events
	q.set(catalog.FieldKVEventsEndpoints, path)
	if len(replays) > 0 {
		q.reported.ReplayEndpoints = replays
		q.set(catalog.FieldReplayEndpoints, path)
	}
	return nil
}

// socket returns a socket that the engine binds as one to connect to.
func (q *question) socket(bound string) (string, error) {
	e, err := catalog.ParseEndpoint(bound)
	switch {
	case err != nil:
		return "", err
	case e.Scheme != "tcp" || e.Port == 0:
		return "", fmt.Errorf("its socket `%s` cannot be reached over the network", catalog.Clip(bound))
	}
	return q.at(uint32(e.Port)), q.checkHost(e.Host)
}
