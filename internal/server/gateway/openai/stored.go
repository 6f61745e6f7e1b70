package openai

import (
	"net/url"
	"strings"
)

// Stored says what a request has to do with what engines keep under ids of their own: responses, files and
// batches. The zero Stored has nothing to do with them.
type Stored struct {
	// Of: the path is one of theirs.
	Of bool
	// ID is what the path names; empty: nothing, or all.
	ID string
	// Shows: the answer shows ids that its engine has.
	Shows bool
	// Deletes: what ID names is gone with a successful answer.
	Deletes bool
}

// storedRoutes are the collections, each with the routes of a member whose answer is the member itself.
var storedRoutes = []struct {
	name  string
	shows []string
}{
	{"/v1/responses", []string{"", "cancel"}},
	{"/v1/files", []string{""}},
	{"/v1/batches", []string{"", "cancel"}},
}

// MaxID bounds the ids that are read, in bytes.
const MaxID = 256

// StoredOf returns what a request has to do with stored things by its method and path, which may have a
// prefix and a query.
func StoredOf(method, path string) Stored {
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimSuffix(path, "/")
	for _, r := range storedRoutes {
		i := strings.LastIndex(path, r.name)
		if i < 0 {
			continue
		}
		rest := path[i+len(r.name):]
		if rest == "" {
			return Stored{Of: true, Shows: true}
		}
		if rest[0] != '/' {
			continue
		}
		text, route, _ := strings.Cut(rest[1:], "/")
		id, err := url.PathUnescape(text)
		if err != nil || id == "" || len(id) > MaxID {
			return Stored{Of: true}
		}
		s := Stored{Of: true, ID: id, Deletes: method == "DELETE" && route == ""}
		for _, shown := range r.shows {
			s.Shows = s.Shows || shown == route && !s.Deletes
		}
		return s
	}
	return Stored{}
}
