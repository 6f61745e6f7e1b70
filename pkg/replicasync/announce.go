package replicasync

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// announcement says that a replica is running, where its snapshot is and which
// numbers it has used.
type announcement struct {
	process uint64
	url     string
	// sequence is the last number that was published, or that was used up by an event
	// which had to be dropped before.
	sequence uint64
	// merged counts what the replica has learned and other replicas may have missed.
	// When it rises, they read the replica's snapshot.
	merged uint64
	// renewals is the same as sequence, for renewals.
	renewals uint64
}

const (
	maxAnnouncement = 64 << 10
	maxURL          = 2048
)

var announcementFields = []string{"process_id", "url", "sequence", "merged", "renewals"}

// announcementRequired is the number of fields that must be present, the first ones;
// replicas that do not know leases do not send renewals.
const announcementRequired = 4

// announcement decodes what a replica published on TopicAnnounce.
func (r *reader) announcement(payload []byte) (announcement, error) {
	if len(payload) > maxAnnouncement {
		return announcement{}, errOversized
	}
	r.reset(payload)
	var a announcement
	err := r.fields(announcementFields, announcementRequired, func(name string) (err error) {
		switch name {
		case "process_id":
			a.process, err = r.uint(math.MaxUint64)
		case "url":
			a.url, err = r.text()
		case "sequence":
			a.sequence, err = r.uint(maxSequence)
		case "merged":
			a.merged, err = r.uint(math.MaxUint64)
		case "renewals":
			a.renewals, err = r.uint(maxSequence)
		}
		return err
	})
	switch {
	case err != nil:
		return announcement{}, err
	case a.process == 0:
		return announcement{}, errZeroProcess
	case len(a.url) > maxURL:
		return announcement{}, errOversized
	}
	return a, nil
}

// Speaker is what the transport knows of the replica that publishes at an endpoint: where its
// snapshot is read, which confirms who it is, and what that is worth.
type Speaker struct {
	// Base is the base URL of the replica, in a canonical form, for the Fetcher.
	Base string
	// Host is the host of the endpoint, for the Fetcher; "" if it has none.
	Host string
	// Authenticated: the transport lets only the replica itself publish at the endpoint and
	// answer at Base. Such an endpoint outranks one whose host has the process's snapshot, if that
	// names it: see Options.AuthenticatedAt.
	Authenticated bool
}

// EndpointSpeaker is the Speaker of a transport whose endpoints are addresses, such as
// tcp://host:port. The host of peer, the endpoint, replaces an unspecified one in the URL that
// was announced there.
func EndpointSpeaker(announced, peer string) (Speaker, error) {
	u, err := url.Parse(announced)
	switch {
	case err != nil:
		return Speaker{}, err
	case u.Scheme != "http" && u.Scheme != "https":
		return Speaker{}, fmt.Errorf("announced URL %q is not HTTP", announced)
	case u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return Speaker{}, fmt.Errorf("announced URL %q is no base URL", announced)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	host := u.Hostname()
	addr, _ := netip.ParseAddr(host)
	unspecified := host == "" || addr.IsUnspecified()
	e, err := catalog.ParseEndpoint(peer)
	var at string // the host of the endpoint
	switch {
	case err != nil:
		return Speaker{}, err
	case e.Scheme != "tcp": // ipc, inproc: the same machine
		at = "127.0.0.1"
	case !e.Wildcard:
		at = e.Host
	case unspecified:
		return Speaker{}, errors.New("peer has no host")
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	switch {
	case unspecified:
		name = at
	case addr.IsValid(): // of which there are many spellings
		name = addr.Unmap().String()
	}
	if port := strings.TrimLeft(u.Port(), "0"); port != "" {
		u.Host = net.JoinHostPort(name, port)
	} else if strings.Contains(name, ":") {
		u.Host = "[" + name + "]"
	} else {
		u.Host = name
	}
	return Speaker{Base: u.String(), Host: at}, nil
}
