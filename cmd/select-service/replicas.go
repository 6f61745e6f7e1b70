package main

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/fetch"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/internal/zmqsock"
	"github.com/select-service/select-service/pkg/replicasync"
)

// fetchIdle is how long another replica may send nothing: it may be busy with a
// large index before the first byte of its dump.
const fetchIdle = 30 * time.Second

// replicas are the ways from this process to the others.
type replicas struct {
	conf  config.Replicas
	mesh  *zmqsock.Mesh // nil: bookings are not shared
	fetch *fetch.Client
}

func newReplicas(conf config.Replicas, hub *zmqsock.Hub) replicas {
	r := replicas{conf: conf, fetch: fetch.New(fetchIdle)}
	if endpoint := conf.Publish(); endpoint != "" {
		r.mesh = zmqsock.NewMesh(hub, endpoint, []string{replicasync.TopicEvents, replicasync.TopicAnnounce})
	}
	return r
}

// configure adds what the service needs to know of the others; url is its own
// base URL.
func (r replicas) configure(c *service.Config, url string) {
	c.Recovery = service.RecoveryConfig{
		Peers:    r.conf.IndexerPeers,
		Deadline: r.conf.RecoveryDeadline,
		Grace:    r.conf.RecoveryGrace,
		Fetch:    r.fetch,
	}
	if r.mesh != nil {
		c.Replication = &service.Replication{
			URL:        url,
			Advertised: r.conf.SyncAdvertise,
			Transport:  r.mesh,
			Fetch:      r.fetch,
		}
	}
}

// open binds the publisher and follows the first peers. The hub must run.
func (r replicas) open(svc *service.Service, log zerolog.Logger) error {
	if r.mesh == nil {
		return nil
	}
	if err := r.mesh.Open(); err != nil {
		return err
	}
	for _, peer := range r.conf.SyncPeers {
		if _, err := svc.RegisterPeer(peer); err != nil {
			return err
		}
	}
	log.Info().Str("endpoint", r.conf.Publish()).Strs("peers", svc.Peers()).Msg("sharing bookings")
	return nil
}

// close ends what open began.
func (r replicas) close() {
	if r.mesh != nil {
		r.mesh.Close()
	}
	r.fetch.Close()
}
