package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/select-service/select-service/internal/transport/atomicfile"
)

// cached is the text of the file that keeps the last version.
type cached struct {
	Format   int             `json:"format"`
	Version  uint64          `json:"version"`
	IDs      []string        `json:"ids"`
	File     string          `json:"file,omitempty"`
	Time     time.Time       `json:"time"`
	Settings *sharedSettings `json:"settings,omitempty"`
	Workers  []*entry        `json:"workers"`
}

// keep has a state written to the file.
func (c *Catalog) keep(s *state) {
	if c.config.Cache == "" {
		return
	}
	select {
	case <-c.cache: // one that was not written yet
	default:
	}
	c.cache <- s // only Run sends
}

// writeCache writes states until ctx ends.
func (c *Catalog) writeCache(ctx context.Context) {
	for {
		select {
		case s := <-c.cache:
			c.noteCached(s)
		case <-ctx.Done():
			select {
			case s := <-c.cache:
				c.noteCached(s)
			default:
			}
			return
		}
	}
}

func (c *Catalog) noteCached(s *state) {
	if err := writeFile(c.config.Cache, s); err != nil {
		c.config.Log.Error().Err(err).Msg("the fleet's catalog was not cached: the copy before stays")
	}
}

// writeFile writes a state to the file.
func writeFile(path string, s *state) error {
	text, err := json.Marshal(cached{Format: format, Version: s.version, IDs: s.ids, File: s.file, Settings: s.settings, Time: time.Now().UTC(), Workers: s.entries()})
	if err != nil {
		return err
	}
	value, err := zip(text)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(out io.Writer) error {
		_, err := out.Write(value)
		return err
	})
}

// readFile reads what writeFile has written.
func readFile(path string) (*state, time.Time, error) {
	value, err := os.ReadFile(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := unzip(value, maxCatalog)
	if err != nil {
		return nil, time.Time{}, err
	}
	var f cached
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, time.Time{}, err
	}
	switch {
	case f.Format > format:
		return nil, time.Time{}, errFormat
	case f.Version > maxVersion:
		return nil, time.Time{}, errNotOurs
	}
	if err := errors.Join(readRecords(f.Workers), f.Settings.check()); err != nil {
		return nil, time.Time{}, err
	}
	s := &state{version: f.Version, ids: f.IDs, file: f.File, settings: f.Settings}
	s.fill(f.Workers, new(state))
	return s, f.Time, nil
}

// readRecords reads the records of entries.
func readRecords(entries []*entry) error {
	for _, e := range entries {
		if e == nil {
			return errNoWorker
		}
		if err := json.Unmarshal(e.Record, &e.record); err != nil {
			return err
		}
	}
	return nil
}

// loadCache makes what the file has the catalog of this process.
func (c *Catalog) loadCache() {
	if c.config.Cache == "" {
		return
	}
	s, written, err := readFile(c.config.Cache)
	switch {
	case errors.Is(err, os.ErrNotExist):
		c.config.Log.Info().Str("file", c.config.Cache).Msg("no copy of the fleet's catalog yet")
		return
	case err != nil:
		c.config.Log.Warn().Err(fmt.Errorf("%s: %w", c.config.Cache, err)).Msg("the copy of the fleet's catalog is not used")
		return
	}
	c.now = s
	c.apply(s)
	c.show(Cached)
	c.config.Log.Info().Uint64("version", s.version).Int("workers", len(s.entries())).Time("written", written).
		Msg("workers are those of the copy of the fleet's catalog until NATS can be reached")
}
