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
	// sequence is the last number that was published, or used up by an event
	// that had to be dropped before it could be.
	sequence uint64
	// merged counts what the replica has learned and others may not hear of. When it
	// rises they read the replica's snapshot.
	merged uint64
	// renewals is what sequence is, for renewals.
	renewals uint64
}

const (
	maxAnnouncement = 64 << 10
	maxURL          = 2048
)

var announcementFields = []string{"process_id", "url", "sequence", "merged", "renewals"}

// announcementRequired is the number of fields that must be there; replicas that
// know of no leases do not send renewals.
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

// reachable returns the base URL that a replica announced as the receiver reaches
// it, in one form for all ways to write it, and the host at which the receiver follows
// the replica, which replaces an unspecified one.
func reachable(announced, peer string) (base, at string, err error) {
	u, err := url.Parse(announced)
	switch {
	case err != nil:
		return "", "", err
	case u.Scheme != "http" && u.Scheme != "https":
		return "", "", fmt.Errorf("announced URL %q is not HTTP", announced)
	case u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", "", fmt.Errorf("announced URL %q is no base URL", announced)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	host := u.Hostname()
	addr, _ := netip.ParseAddr(host)
	unspecified := host == "" || addr.IsUnspecified()
	e, err := catalog.ParseEndpoint(peer)
	switch {
	case err != nil:
		return "", "", err
	case e.Scheme != "tcp": // ipc, inproc: the same machine
		at = "127.0.0.1"
	case !e.Wildcard:
		at = e.Host
	case unspecified:
		return "", "", errors.New("peer has no host")
	}
	name := strings.ToLower(host)
	if unspecified {
		name = at
	}
	if port := strings.TrimLeft(u.Port(), "0"); port != "" {
		u.Host = net.JoinHostPort(name, port)
	} else if strings.Contains(name, ":") {
		u.Host = "[" + name + "]"
	} else {
		u.Host = name
	}
	return u.String(), at, nil
}
