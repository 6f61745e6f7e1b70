package catalog

import (
	"net"
	"net/url"
	"strings"
	"sync"
)

// Values of Record.RankHeader: the number by which the frontend of an engine knows a rank.
const (
	// RankLocal counts from the worker's first rank: vLLM's frontend that serves the engines
	// of its own node only refuses other numbers.
	RankLocal = "local"
	// RankGlobal is the rank as the catalog has it: a frontend that balances over all nodes.
	RankGlobal = "global"
	// RankNone: the frontend takes no rank and picks one itself.
	RankNone = "none"
)

// RankHeader returns how the frontend of a worker wants to be told a rank. If the record does not
// say, it is that of the worker's engine; else RankLocal if the worker starts above rank 0, has several ranks, and no other record
// of the catalog has its endpoint, and RankGlobal otherwise (decision U2).
func (c *Catalog) RankHeader(w *Worker) string {
	switch {
	case w.RankHeader != nil:
		return *w.RankHeader
	case w.engine().RankHeader != "":
		return w.engine().RankHeader
	case w.FirstRank() == 0 || w.RankCount() < 2 || c.view.Load().sharesEndpoint(w):
		return RankGlobal
	}
	return RankLocal
}

// LocalRank returns the number of a rank of the worker's own range, counted from the first.
func (r *Record) LocalRank(dp uint32) uint32 { return dp - r.FirstRank() }

// endpointUsers has the records of a view by endpoint. It is built on first use, since few catalogs
// need it.
type endpointUsers struct {
	build sync.Once
	users map[string]endpointUser // by endpointKey
}

// endpointUser is the only record with an endpoint, unless there are several.
type endpointUser struct {
	id      uint64
	several bool
}

// sharesEndpoint reports whether a record besides the worker's has its endpoint.
func (v *view) sharesEndpoint(w *Worker) bool {
	v.endpoints.build.Do(func() {
		users := make(map[string]endpointUser, len(v.workers))
		for _, w := range v.workers {
			if w.Address() == "" {
				continue
			}
			key := endpointKey(w.Address())
			_, taken := users[key]
			users[key] = endpointUser{id: w.ID, several: taken}
		}
		v.endpoints.users = users
	})
	user, used := v.endpoints.users[endpointKey(w.Address())]
	return used && (user.several || user.id != w.ID)
}

// endpointKey returns a text that is the same for all spellings of an endpoint.
func endpointKey(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return strings.ToLower(endpoint)
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return strings.ToLower(net.JoinHostPort(u.Hostname(), port)) + strings.TrimRight(u.Path, "/")
}
