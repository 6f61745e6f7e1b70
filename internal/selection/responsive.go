package selection

import (
	"time"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/pkg/catalog"
)

// responsive lists the eligible ranks whose engines give signs of life, and those that are due for
// a trial; all eligible ranks if there are none, and for a pinned request.
func (c *selection) responsive() []catalog.Entry {
	c.silent = nil
	excluded := c.api.reports.Excluded(c.request.Scope)
	if excluded == nil || c.request.Pinned != nil {
		return c.eligible
	}
	c.responding = appendResponsive(c.responding[:0], c.eligible, excluded)
	if len(c.responding) == 0 {
		c.api.reports.NoteAllExcluded()
		return c.eligible
	}
	c.silent = excluded
	if len(c.responding) == len(c.eligible) {
		return c.eligible
	}
	return c.responding
}

// appendResponsive appends the ranks that are not excluded, or due for a trial.
func appendResponsive(dst, ranks []catalog.Entry, excluded reports.Exclusions) []catalog.Entry {
	now := time.Now()
	for _, e := range ranks {
		if x := excluded[e.Rank]; x == nil || x.Due(now) {
			dst = append(dst, e)
		}
	}
	return dst
}

// tries takes the trial of a chosen rank that gives no sign of life; false if another request has
// taken it. A request that has no effect takes none.
func (c *selection) tries(of catalog.Rank) bool {
	if c.silent == nil || c.request.Advisory || c.request.ExplainOnly {
		return true
	}
	x := c.silent[of]
	return x == nil || x.Try(time.Now())
}
