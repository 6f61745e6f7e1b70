package httpapi

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// reconciler replaces the full set of workers.
type reconciler interface {
	// TakesSet returns an error if the set of workers comes from elsewhere.
	TakesSet() error
	// ReconcileWorkers replaces all workers of the chosen scopes by the records.
	ReconcileWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error)
	// CompareWorkers returns what ReconcileWorkers would, and changes nothing.
	CompareWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error)
}

type reconcileRoutes struct {
	svc reconciler
	d   dialect
}

// checkAllowed refuses a request before its body is read. A PUT without a body probes for the
// route, which Dynamo's service does not have. With a workers file the set cannot be replaced.
// Names in the query, as GET has them, would be ignored, and the workers of all scopes that the
// set lacks would be removed.
func (r reconcileRoutes) checkAllowed(c request) error {
	if c.Request.ContentLength == 0 {
		c.Header("Allow", "POST, GET, HEAD")
		return errMethodNotAllowed
	}
	if err := r.svc.TakesSet(); err != nil {
		return err
	}
	if _, err := queryBool(c.Request, dryRun, false); err != nil {
		return err
	}
	f, err := filterOf(c.Request)
	if err == nil && (f.Model != nil || f.Tenant != nil) {
		err = badRequest("the query names a scope: name it in the body, `model_name` and `" + r.d.tenantKey() + "` beside `workers`")
	}
	return err
}

func (r reconcileRoutes) put(c request, b *reconcileBody, out []byte) (int, []byte, error) {
	scope, err := b.resolveScopes()
	if err != nil {
		return 0, nil, err
	}
	dry, err := queryBool(c.Request, dryRun, false)
	if err != nil {
		return 0, nil, err
	}
	c.about(setOf{scope, len(b.workers), dry, catalog.Difference{}})
	use := r.svc.ReconcileWorkers
	if dry {
		use = r.svc.CompareWorkers
	}
	d, err := use(b.workers, scope)
	if err != nil {
		return 0, nil, err
	}
	c.about(setOf{scope, len(b.workers), dry, d})
	return http.StatusOK, appendDifference(out, d), nil
}

// dryRun is the parameter of the query that asks for the answer alone.
const dryRun = "dry_run"

// setOf is a set of workers in an audit line.
type setOf struct {
	scope   catalog.ScopeFilter
	workers int
	dryRun  bool
	changed catalog.Difference
}

func (s setOf) describe(e *zerolog.Event) {
	describeFilter(e, s.scope)
	if s.dryRun {
		e.Bool("dry_run", true)
	}
	e.Int("workers", s.workers).Int("added", len(s.changed.Added)).
		Int("changed", len(s.changed.Changed)).Int("removed", len(s.changed.Removed))
}

func appendDifference(out []byte, d catalog.Difference) []byte {
	out = append(out, '{')
	out = appendList(appendKey(out, "added"), d.Added, appendUint)
	out = appendList(appendKey(out, "changed"), d.Changed, appendUint)
	out = appendList(appendKey(out, "removed"), d.Removed, appendUint)
	out = appendUintField(out, "unchanged", uint64(d.Unchanged))
	return append(appendBehind(out, d.Behind), '}')
}

// appendBehind appends the replicas of a fleet that did not have a change when it was answered.
func appendBehind(out []byte, replicas []string) []byte {
	if len(replicas) == 0 {
		return out
	}
	return appendList(appendKey(out, "replicas_behind"), replicas, appendString)
}

func appendUint(out []byte, n uint64) []byte { return strconv.AppendUint(out, n, 10) }

// reconcileBody is the body of PUT /workers (decision E5).
type reconcileBody struct {
	scope   catalog.Scope // scope of the set; unnamed where the body has no name
	workers []catalog.Record
	worker  workerBody // being read
	group   string     // the dialect's member for the tenant
}

// unnamed stands for a missing name. It is not valid UTF-8, so no name of a body equals it.
const unnamed = "\xff"

var unnamedScope = catalog.Scope{Model: unnamed, Tenant: unnamed}

// newReconcileBody is the body of PUT /workers. Of more than most workers, 0 being any
// number, one is kept beyond those, for the catalog to refuse: a record takes many times its
// text.
func newReconcileBody(d dialect, most int) *body[reconcileBody] {
	worker := newWorkerShape(d)
	fields := scopeFields(d, func(b *reconcileBody) *catalog.Scope { return &b.scope })
	fields = append(fields, bodyscan.Field[reconcileBody]{Name: "workers", Required: true, Read: func(s *bodyscan.Scanner, b *reconcileBody) {
		for range s.Array() {
			b.worker = workerBody{Scope: unnamedScope}
			worker.Read(s, &b.worker)
			if most == 0 || len(b.workers) <= most {
				b.workers = append(b.workers, catalog.Record(b.worker))
			}
		}
	}})
	// The catalog keeps the memory that the records refer to, so nothing is reused.
	reset := func(b *reconcileBody) { *b = reconcileBody{scope: unnamedScope, group: d.tenantKey()} }
	return newBody(bodyscan.NewObject(fields...), reset, nil).permit(func(who *access.Caller, b *reconcileBody) error {
		return who.Covers(b.filter())
	})
}

// resolveScopes gives workers without a name the set's name, or else the default. A worker with
// another name than the set's is an error.
func (b *reconcileBody) resolveScopes() (catalog.ScopeFilter, error) {
	for i := range b.workers {
		w := &b.workers[i].Scope
		if err := inherit(&w.Model, b.scope.Model, i, "model_name"); err != nil {
			return catalog.ScopeFilter{}, err
		}
		if err := inherit(&w.Tenant, b.scope.Tenant, i, b.group); err != nil {
			return catalog.ScopeFilter{}, err
		}
	}
	f := b.filter()
	for i := range b.workers {
		takeModel(&b.workers[i], f)
	}
	return f, nil
}

// filter returns the scopes whose workers are replaced.
func (b *reconcileBody) filter() catalog.ScopeFilter {
	return catalog.ScopeFilter{Model: nameOrNil(b.scope.Model), Tenant: nameOrNil(b.scope.Tenant)}
}

func inherit(name *string, ofSet string, worker int, field string) error {
	switch {
	case *name == unnamed && ofSet == unnamed:
		*name = catalog.DefaultName
	case *name == unnamed:
		*name = ofSet
	case ofSet != unnamed && *name != ofSet:
		return badRequest(fmt.Sprintf("workers[%d]: %s %q is not that of the set, %q",
			worker, field, catalog.ShortName(*name), catalog.ShortName(ofSet)))
	}
	return nil
}

// nameOrNil returns nil for a missing name.
func nameOrNil(name string) *string {
	if name == unnamed {
		return nil
	}
	return &name
}
