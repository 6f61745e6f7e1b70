package selecting

import (
	"context"
	"math"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/waitqueue"
	"github.com/select-service/select-service/pkg/catalog"
)

// SelectDuring is Select, stopped between its look at the workers and its choice:
// there change runs. stale is what became of the selection on what it had looked
// at; the answer and err are those of the next attempt.
func (a *API) SelectDuring(ctx context.Context, req *SelectRequest, reserve bool, change func()) (stale error, answer Selection, err error) {
	c := a.newSelection(req, reserve)
	defer c.recycle()
	if err := c.findWorkers(); err != nil {
		return nil, Selection{}, err
	}
	if err := c.admit(ctx); err != nil {
		return nil, Selection{}, err
	}
	if err := c.lookUpOverlap(); err != nil {
		return nil, Selection{}, err
	}
	change()
	stale = c.runOrWait(ctx)
	err = c.serve(ctx)
	return stale, c.result, err
}

// CheckOverloadLate lets the selections of a scope be tested for overload under
// the ledger's lock only, or early, too, as without wait queue. Late, the scope
// gets a queue in which nothing ever waits. It must not be called while selections
// run.
func (a *API) CheckOverloadLate(sc catalog.Scope, late bool) {
	state := a.scopes.Of(sc)
	if state == nil {
		return
	}
	var policy *admission.Policy
	if late {
		policy = admission.Config{Threshold: new(math.MaxFloat64)}.ForModel(sc.Model)
	}
	state.Queue = waitqueue.New(waitqueue.Config{}, policy)
}
