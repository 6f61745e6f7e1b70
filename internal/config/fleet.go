package config

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/select-service/select-service/internal/fleet/bus"
)

// Fleet says where the replicas of a fleet meet over NATS; without servers nothing of it runs.
type Fleet struct {
	Servers  []string // nats:// or tls:// URLs
	Name     string
	Replica  string // empty: made of the host's name
	Bookings string // one of the Bookings values: how reservations are shared
	// Credentials is the file with a NATS user's JWT and seed, empty for none.
	Credentials   string
	CA, Cert, Key string // files of the connection's TLS
	// Required: a start waits for NATS, whatever catalog is cached.
	Required bool
}

// How the replicas of a fleet share reservations.
const (
	BookingsNATS = "nats"
	BookingsMesh = "mesh" // over ZMQ, as without a fleet
	BookingsBoth = "both"
)

// Enabled reports whether this replica is one of a fleet.
func (f Fleet) Enabled() bool { return len(f.Servers) > 0 }

// Mesh reports whether reservations are shared over ZMQ.
func (f Fleet) Mesh() bool { return !f.Enabled() || f.Bookings != BookingsNATS }

// NATS reports whether reservations are shared over NATS.
func (f Fleet) NATS() bool { return f.Enabled() && f.Bookings != BookingsMesh }

const (
	keyFleet         = "fleet.servers"
	keyFleetBookings = "fleet.bookings"
)

var errFleetURL = errors.New("not a nats://host:port or tls://host:port URL")

// fleetServer checks the URL of a NATS server.
func fleetServer(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.Path != "" && u.Path != "/" {
		return "", errFleetURL
	}
	return text, nil
}

func fleetName(text string) (string, error) { return text, bus.CheckName(text) }

// conflicts refuses a fleet whose reservations would be shared over a mesh, if no mesh is configured.
func (f Fleet) conflicts(r Replicas) (found []conflict) {
	if f.Enabled() && f.Bookings != BookingsNATS && r.Publish() == "" {
		found = append(found, conflict{
			keyFleetBookings,
			[]string{keySyncPort, keyBind},
			fmt.Errorf("%s: the reservations of the mesh need --replica-sync-port", f.Bookings),
		})
	}
	return found
}

// fleetSettings are the settings of the fleet.
var fleetSettings = []option{
	{
		key: keyFleet, flag: "fleet", hint: "URL,...", slots: notInSlots,
		bind: func(c *Config) value { return list(&c.Fleet.Servers, fleetServer) },
		help: "NATS servers (nats://host:port or tls://host:port) over which the replicas of a fleet find each other and " +
			"share workers and reservations. JetStream must be enabled there. --replica-sync-peers and --indexer-peers " +
			"are not needed then. A fleet is worth it from about five replicas on; see docs/run/fleet.md.",
	},
	{
		key: "fleet.name", flag: "fleet-name", hint: "NAME", slots: notInSlots,
		bind: func(c *Config) value { return checkedText(&c.Fleet.Name, fleetName) },
		help: "The name of the fleet, the same for all its replicas. It has letters, digits, - and _. Set it where " +
			"several fleets share servers.",
	},
	{
		key: "fleet.replica", flag: "fleet-replica", hint: "NAME", slots: notInSlots,
		bind: func(c *Config) value { return checkedText(&c.Fleet.Replica, fleetName) },
		help: "The name of this replica in its fleet, and of the subject under which it alone publishes. By default it is " +
			"the host's name, with - for characters that a name cannot have.",
	},
	{
		key: keyFleetBookings, flag: "fleet-bookings", hint: "nats|mesh|both", slots: notInSlots,
		bind: func(c *Config) value { return choice(&c.Fleet.Bookings, BookingsNATS, BookingsMesh, BookingsBoth) },
		help: "How the replicas of a fleet share reservations: over NATS, over ZMQ as without a fleet, or over both. Set " +
			"both while a fleet moves from one to the other, or where Dynamo's replicas take part.",
	},
	{
		key: "fleet.required", flag: "fleet-required", slots: notInSlots,
		bind: func(c *Config) value { return boolean(&c.Fleet.Required) },
		help: "A replica is not ready before it has read the fleet's catalog from NATS. If this is false, it is ready " +
			"after 5 seconds with the catalog that it has in --data-dir, or with none.",
	},
	{
		key: "fleet.creds", flag: "fleet-creds", hint: "FILE", slots: notInSlots,
		bind: func(c *Config) value { return text(&c.Fleet.Credentials) },
		help: "A file with the JWT and the seed of the NATS user of this replica (as 'nsc generate creds' writes it), or " +
			"with the seed of an NKey alone. It is read at every connection.",
	},
	{
		key: "fleet.ca", flag: "fleet-ca", hint: "FILE", slots: notInSlots,
		bind: func(c *Config) value { return text(&c.Fleet.CA) },
		help: "Authorities (PEM) of the NATS servers. By default they are the system's. With this option the connection " +
			"is TLS.",
	},
	{
		key: "fleet.cert", flag: "fleet-cert", hint: "FILE", slots: notInSlots,
		bind: func(c *Config) value { return text(&c.Fleet.Cert) },
		help: "The certificate chain (PEM) that NATS servers are shown. Set it where they verify clients.",
	},
	{
		key: "fleet.key", flag: "fleet-key", hint: "FILE", slots: notInSlots,
		bind: func(c *Config) value { return text(&c.Fleet.Key) },
		help: "The key (PEM) of --fleet-cert.",
	},
}
