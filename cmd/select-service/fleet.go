package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
)

// joinFleet prepares this replica's part in its fleet, nil if it is of none. base is the base URL of
// its HTTP interface.
func joinFleet(conf config.Config, base string, certificates *certs.Side, budget *memory.Budget, log zerolog.Logger) (*fleet.Member, error) {
	if !conf.Fleet.Enabled() {
		return nil, nil
	}
	name := conf.Fleet.Replica
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--fleet-replica is not given, and this host has no name: %w", err)
		}
		name = bus.NameOf(host)
	}
	opt := fleet.Options{
		Bus: bus.Config{
			Servers: conf.Fleet.Servers, Fleet: conf.Fleet.Name, Replica: name, Process: 1 + rand.Uint64N(math.MaxUint64), URL: base,
			Credentials: conf.Fleet.Credentials, Snapshots: budget.Account(memory.Snapshots), Log: log,
		},
		Cache: cacheFile(conf), Required: conf.Fleet.Required, Bookings: conf.Fleet.NATS(), Hosts: conf.Replicas.Hosts,
	}
	if certificates != nil {
		opt.Bus.TLS = certificates.Client("")
	}
	joined, err := fleet.Join(opt)
	if err != nil {
		return nil, fmt.Errorf("--fleet: %w", err)
	}
	return joined, nil
}

// cacheFile returns the file that keeps the fleet's catalog, "" for none. It has the fleet's name, so
// that no other fleet's is used.
func cacheFile(conf config.Config) string {
	if conf.Data.Dir == "" {
		return ""
	}
	return filepath.Join(conf.Data.Dir, "fleet-"+conf.Fleet.Name)
}

// fleetDialer returns what connects to the URLs that replicas have said over NATS: to other hosts where
// --allow-endpoints lets it; nil without a fleet: nothing else than to others.
func fleetDialer(conf config.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	if !conf.Fleet.Enabled() {
		return nil
	}
	return engines.Dialer{Endpoints: conf.Access.Endpoints()}.Dial
}

// answers returns what answers the requests of other replicas of a fleet, by its path.
func answers(svc *node.Service, status func() *replicastatus.Status) map[string]fleet.Answer {
	return map[string]fleet.Answer{
		replicasync.SnapshotPath: func(ctx context.Context, w io.Writer, u *url.URL) error {
			return svc.UseCases.WriteSnapshot(ctx, w, replicasync.PageOf(u.Query()))
		},
		replicastatus.Path: func(_ context.Context, w io.Writer, _ *url.URL) error { return json.NewEncoder(w).Encode(status()) },
	}
}
