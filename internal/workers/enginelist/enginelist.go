// Package enginelist turns a list of engines' URLs into workers that their engines describe.
package enginelist

import (
	"context"
	"fmt"
	"strings"

	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/internal/workers/workerid"
	"github.com/select-service/select-service/pkg/catalog"
)

// Check returns an entry, "URL" or "ENGINE=URL" with one of catalog.Engines, with its URL in the normal form.
func Check(entry string) (string, error) {
	engine, url, err := split(entry)
	if err != nil || engine == "" {
		return url, err
	}
	return engine + "=" + url, nil
}

func split(entry string) (engine, url string, err error) {
	url = entry
	if kind, rest, named := strings.Cut(entry, "="); named && !strings.Contains(kind, "/") {
		if engine, url = kind, rest; catalog.EngineNamed(engine).Name == "" {
			return "", "", fmt.Errorf("`%s` names another engine than %s", catalog.Clip(entry), catalog.AnyOf(catalog.Engines()))
		}
	}
	url, err = catalog.NormalURL(url)
	return engine, url, err
}

// Record returns the worker of an entry that Check accepts. Its id is that of the URL; its model is
// the engine's unless the set to which it belongs is of one model.
func Record(entry string, set catalog.ScopeFilter) (catalog.Record, error) {
	engine, url, err := split(entry)
	if err != nil {
		return catalog.Record{}, err
	}
	r := catalog.Record{
		ID: workerid.Of(url), Scope: catalog.Scope{Model: catalog.DefaultName, Tenant: catalog.DefaultName},
		Source: catalog.Source{Kind: catalog.SourceFile}, Endpoint: &url,
		Describe: &catalog.Describe{Engine: engine, Model: set.Model == nil},
	}
	if set.Model != nil {
		r.Scope.Model = *set.Model
	}
	if set.Tenant != nil {
		r.Scope.Tenant = *set.Tenant
	}
	return r, nil
}

// Source has the workers of a list for as long as the process lives. It is a workers.Source for
// processes without a workers file, which has its own way to list engines.
type Source struct{ records []catalog.Record }

// New returns the source of entries that Check accepts.
func New(entries []string) (*Source, error) {
	s := new(Source)
	check := catalog.NewSetCheck(catalog.ScopeFilter{})
	for _, entry := range entries {
		r, err := Record(entry, catalog.ScopeFilter{})
		if err == nil {
			err = check.Add(&r)
		}
		if err != nil {
			return nil, fmt.Errorf("engine %s: %w", catalog.Clip(entry), err)
		}
		s.records = append(s.records, r)
	}
	return s, nil
}

// Kind is part of workers.Source.
func (*Source) Kind() catalog.SourceKind { return catalog.SourceFile }

// Run is part of workers.Source. It fails if the workers are refused.
func (s *Source) Run(ctx context.Context, apply workers.Apply) error {
	if _, err := apply(catalog.Set{Records: s.records}); err != nil {
		return fmt.Errorf("list of engines: %w", err)
	}
	<-ctx.Done()
	return nil
}
