package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/internal/transport/fetch"
	"github.com/select-service/select-service/internal/transport/filewatch"
	"github.com/select-service/select-service/internal/workers/enginelist"
	"github.com/select-service/select-service/internal/workers/workersfile"
	"github.com/select-service/select-service/pkg/catalog"
)

// files has the files that the configuration names and that are followed while the service
// runs. Each may be nil: not configured.
type files struct {
	workers      *workersfile.File
	engines      *enginelist.Source // without a workers file
	certificates *certs.Side        // of the listeners
	peers        *certs.Side        // of reads from other replicas
	peerToken    *fetch.Token
	engineCerts  *certs.Side // of reads from engines
	engineToken  *fetch.Token
	fleet        *certs.Side // of the connection to the fleet's NATS
	tokens       *access.Guard
	discoveries  []discovery // set by run
}

// readFiles reads the files; a faulty file is a fault of the configuration.
func readFiles(conf config.Config) (files, error) {
	var f files
	t := conf.TLS
	var faults []error
	for _, read := range []func() error{
		func() (err error) {
			if conf.Workers.File != "" {
				if f.workers, err = workersfile.Load(conf.Workers.File, conf.Workers.Engines...); err != nil {
					err = fmt.Errorf("workers file: %w", err)
				}
			} else if len(conf.Workers.Engines) > 0 {
				f.engines, err = enginelist.New(conf.Workers.Engines)
			}
			return err
		},
		func() (err error) {
			f.certificates, err = certs.Load("certificates of the listeners", certs.Files{Cert: t.Cert, Key: t.Key, CA: t.ClientCA})
			return err
		},
		func() (err error) {
			f.peers, err = certs.Load("certificates for other replicas", certs.Files{Cert: t.PeerCert, Key: t.PeerKey, CA: t.PeerCA})
			return err
		},
		func() (err error) {
			f.peerToken, err = fetch.LoadToken("token for other replicas", conf.Replicas.PeerTokenFile)
			return err
		},
		func() (err error) {
			f.engineCerts, err = certs.Load("certificates for engines", certs.Files{Cert: t.EngineCert, Key: t.EngineKey, CA: t.EngineCA})
			return err
		},
		func() (err error) {
			f.fleet, err = certs.Load("certificates of the fleet", certs.Files{Cert: conf.Fleet.Cert, Key: conf.Fleet.Key, CA: conf.Fleet.CA})
			return err
		},
		func() (err error) {
			f.engineToken, err = fetch.LoadToken("token for engines", conf.Engines.TokenFile)
			return err
		},
		func() (err error) {
			if conf.Access.TokensFile != "" {
				f.tokens, err = access.New(conf.Access.TokensFile)
			}
			return err
		},
	} {
		if err := read(); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return files{}, &config.InvalidError{Faults: faults}
	}
	return f, nil
}

// cluster returns what the configuration says of Kubernetes, nil if it says nothing.
func (f files) cluster() *cluster {
	for _, d := range f.discoveries {
		if c, is := d.(*cluster); is {
			return c
		}
	}
	return nil
}

// follow reads the files again when they change, and on SIGHUP all of them and those of
// others, until ctx ends.
func (f files) follow(ctx context.Context, g *errgroup.Group, log zerolog.Logger, others ...interface{ Reload() }) {
	watched := []*filewatch.Watcher{f.certificates.Watcher(), f.peers.Watcher(), f.peerToken.Watcher(), f.engineCerts.Watcher(), f.fleet.Watcher(), f.engineToken.Watcher(), f.tokens.Watcher()}
	for _, w := range watched {
		g.Go(func() error { return w.Run(ctx, log) })
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // never undone: by default SIGHUP ends the process
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-hangups:
			}
			log.Info().Msg("SIGHUP: files are read again")
			for _, o := range others {
				o.Reload()
			}
			for _, w := range watched {
				w.Reload()
			}
		}
	})
}

// engineAccess returns what engines are shown, and what their HTTP servers must be.
func (f files) engineAccess(endpoints catalog.EndpointPolicy) engines.Access {
	return engines.Access{Dialer: engines.Dialer{Endpoints: endpoints, Certificates: f.engineCerts}, Token: f.engineTokenText()}
}

// engineTokenText returns what gives the current token for engines; nil: none is configured.
func (f files) engineTokenText() func() string {
	if f.engineToken == nil {
		return nil
	}
	return f.engineToken.Text
}
