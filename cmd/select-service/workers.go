package main

import (
	"context"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/internal/workersfile"
)

// readWorkers reads the workers file, if there is one, as a part of the
// configuration.
func readWorkers(conf config.Workers) (*workersfile.File, error) {
	if conf.File == "" {
		return nil, nil
	}
	file, err := workersfile.Load(conf.File)
	if err != nil {
		return nil, &config.InvalidError{Faults: []error{fmt.Errorf("workers file: %w", err)}}
	}
	return file, nil
}

// follower keeps the catalog equal to the workers file. A nil follower has no file.
type follower struct {
	*workersfile.Watcher
	path  string
	first *workersfile.File
	svc   *service.Service
	log   zerolog.Logger
}

func newFollower(conf config.Workers, first *workersfile.File, svc *service.Service, log zerolog.Logger) *follower {
	if first == nil {
		return nil
	}
	return &follower{workersfile.NewWatcher(conf.File, first, svc, log), conf.File, first, svc, log}
}

// run registers the workers and follows the file until ctx ends.
func (f *follower) run(ctx context.Context) error {
	if f == nil {
		return nil
	}
	difference, err := f.svc.ReplaceWorkers(f.first.Records, f.first.Scope)
	if err != nil {
		return fmt.Errorf("workers file %s: %w", f.path, f.first.Locate(err))
	}
	f.log.Info().Str("workers_file", f.path).Int("workers", len(difference.Added)).Msg("workers are registered from the file")
	return f.Run(ctx)
}
