package service

import "context"

// SelectLate is Select without the early refusal: what it answers is what the
// test under the ledger's lock says.
func (s *Service) SelectLate(ctx context.Context, req *SelectRequest, reserve bool) (Selection, error) {
	c := selection{query: newQuery(), service: s, request: req, filter: filterOf(req), reserve: reserve}
	defer c.recycle()
	var err error
	if c.snap, c.scope, err = s.scopes.Schedulable(req.Scope); err != nil {
		return Selection{}, err
	}
	if err := c.check(); err != nil {
		return Selection{}, err
	}
	if err := c.lookUp(); err != nil {
		return Selection{}, err
	}
	err = c.runOrWait(ctx)
	return c.result, err
}

// Remembered is how many first answers are remembered.
func (s *Service) Remembered() int { return s.first.count() }
