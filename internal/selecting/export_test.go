package selecting

import "context"

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
