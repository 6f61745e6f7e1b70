package selection

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/pkg/catalog"
)

// Engines keep responses, files and batches, each under an id that only the engine that made it knows.
// The owner of such an id is its engine's rank. Owners are bindings as those of sessions are, in a
// table of their own, and replicas share them in the same messages, by names that no session has.

const (
	// ownerPrefix begins the names of ids in the messages of replicas. No session has such a name.
	ownerPrefix = "\x03"
	// ownerFor is how long an owner is known after its id was last shown.
	ownerFor = 24 * time.Hour
)

// newOwners returns the table of owners. When it is full, that of the id that was shown longest ago goes.
func newOwners(bytes int64) *affinity.Table {
	t := affinity.New(ownerFor, affinity.MaxSessions, time.Now)
	t.LimitBytes(bytes)
	t.Recycle()
	return t
}

// ownerKey names an id of a tenant.
func ownerKey(sc catalog.Scope, tenant, id string) affinity.Key {
	return affinity.Key{Scope: sc, Session: ownerPrefix + hashed(tenant, id)}
}

// hashed is a text for what a tenant calls by a name. No tenant can name what is another one's.
func hashed(tenant, name string) string {
	h := sha256.New()
	_, _ = h.Write([]byte(tenant))
	_, _ = h.Write([]byte{0}) // no tenant has it
	_, _ = h.Write([]byte(name))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}

func isOwner(name string) bool { return strings.HasPrefix(name, ownerPrefix) }

// Owner returns the rank that has what a tenant's id names in a scope, if that is known.
func (a *API) Owner(sc catalog.Scope, tenant, id string) (catalog.Rank, bool) {
	if a.owners == nil {
		return catalog.Rank{}, false
	}
	return a.owners.Lookup(ownerKey(sc, tenant, id))
}

// Own notes that a rank has what a tenant's id names. While another one that has it is registered, that
// stays.
func (a *API) Own(sc catalog.Scope, tenant, id string, r catalog.Rank) {
	snap := a.catalog.Snapshot(sc)
	if a.owners == nil || snap == nil {
		return
	}
	claim, wait := a.owners.Claim(ownerKey(snap.Scope, tenant, id))
	if wait != nil { // another request shows the id at this moment
		wait.Leave()
		return
	}
	defer claim.Release()
	if bound, ok := claim.Rank(); ok && bound != r {
		if _, registered := snap.KnownEntry(bound); registered {
			return
		}
		claim.Drop()
	}
	claim.Bind(r)
}

// Disown notes that what an id names has been deleted.
func (a *API) Disown(sc catalog.Scope, tenant, id string) {
	if a.owners != nil {
		a.owners.End(ownerKey(sc, tenant, id))
	}
}
