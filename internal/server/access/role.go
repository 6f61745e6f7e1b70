package access

// Role is the permission that a route requires (decision X3).
type Role uint8

// The roles. Read, Call and Operate each include the ones before; Peer and Metrics are
// separate. The zero value is no role, and no route may have it.
const (
	Public  Role = iota + 1 // any caller: health and readiness
	Read                    // lists, loads, overlaps, explanations
	Call                    // selections, reservations and their lifecycle
	Operate                 // workers, peers, thresholds, publishers
	Peer                    // dumps and snapshots, which replicas read of each other
	Metrics
)

// String returns the name of the role in tokens files.
func (r Role) String() string {
	switch r {
	case Public:
		return "public"
	case Read:
		return "read"
	case Call:
		return "call"
	case Operate:
		return "operate"
	case Peer:
		return "peer"
	case Metrics:
		return "metrics"
	}
	return "none"
}

// Grantable are the roles that a token can have.
var Grantable = []Role{Read, Call, Operate, Peer, Metrics}

// roles is a set of them.
type roles uint8

// with adds a role and those that it includes.
func (ro roles) with(r Role) roles {
	ro |= 1 << r
	if r == Call || r == Operate {
		return ro.with(r - 1)
	}
	return ro
}

func (ro roles) has(r Role) bool { return ro&(1<<r) != 0 }
