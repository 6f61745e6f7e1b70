package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// discovery is where the service discovers workers, as the configuration has it.
type discovery interface {
	// kind is that of its workers.
	kind() catalog.SourceKind
	// connect reads how its servers are reached, and asks nothing. An error is a fault of the configuration.
	// With check the configuration is checked only, perhaps on a machine that does not reach them.
	connect(conf config.Config, check bool) error
	// models lists the scopes of the models that it names, which may have no workers now.
	models() []catalog.Scope
	// source returns the source of its workers.
	source(of sourceParts) workers.Source
}

// sourceParts is what sources are made of.
type sourceParts struct {
	conf   config.Config
	svc    *node.Service
	budget *memory.Budget
	getenv func(string) string
	log    zerolog.Logger
}

// discoveries are all kinds: each reads the configuration, without asking anybody, and returns nil if it
// says nothing of it. A new kind is a row here, and a file as kubernetes.go.
var discoveries = []func(conf config.Config, getenv func(string) string) (discovery, error){
	func(conf config.Config, getenv func(string) string) (discovery, error) {
		if c, err := readCluster(conf, getenv); c != nil || err != nil {
			return c, err
		}
		return nil, nil
	},
}

// readDiscoveries returns the discoveries that are configured.
func readDiscoveries(conf config.Config, getenv func(string) string, check bool) (configured []discovery, err error) {
	for _, read := range discoveries {
		d, err := read(conf, getenv)
		if err == nil && d != nil {
			err = d.connect(conf, check)
		}
		if err != nil {
			return nil, err
		}
		if d != nil {
			configured = append(configured, d)
		}
	}
	return configured, nil
}

// collectorsOf returns the collectors of the sources that have one.
func collectorsOf(sources []workers.Source) (all []prometheus.Collector) {
	for _, s := range sources {
		if c, has := s.(interface{ Collector() prometheus.Collector }); has {
			all = append(all, c.Collector())
		}
	}
	return all
}
