package service

import (
	"fmt"
	"strings"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// findStreams says which of the streams that bring the events of a diagnosis'
// owners are not whole.
func findStreams(d *Diagnosis, streams []kvevents.StreamStatus, owner func(catalog.Rank) (conductor.CacheOwner, bool)) {
	for i := range streams {
		st := &streams[i]
		text := streamTrouble(st)
		if text == "" {
			continue
		}
		if who, ok := owner(st.Rank); ok {
			d.Find(fmt.Sprintf("%s: %s", who, text))
		}
	}
}

// streamTrouble says what is missing of a stream's messages, "" for nothing.
func streamTrouble(st *kvevents.StreamStatus) string {
	const effect = "some blocks may be missing, others long gone"
	lost := ""
	if st.Lost > 0 {
		lost = fmt.Sprintf(", and messages of its stream were lost before (%d so far): %s", st.Lost, effect)
	}
	switch {
	case st.State == kvevents.Connecting && st.HasLast:
		return fmt.Sprintf("the connection to %s is lost: what happens there is not seen%s", st.Endpoint, lost)
	case st.State == kvevents.Connecting:
		return "not connected to " + st.Endpoint + " yet"
	case st.State == kvevents.Replaying && st.Lost > 0:
		return "a replay is under way" + lost
	case st.State == kvevents.Replaying:
		return ""
	case st.State == kvevents.Stale && st.Lost > 0:
		return fmt.Sprintf("messages of its stream were lost (%d so far) and no replay had them: %s", st.Lost, effect)
	case st.State == kvevents.Stale:
		return "no replay has shown that it is the same engine as before the connection was lost: " + effect
	}
	// Some messages may have been applied twice. Of the numbers up to the last, then,
	// at least these were never seen; lost ones have been told of, and restarts
	// begin a count of their own.
	if n := st.Applied + st.Lost; st.HasLast && n <= st.Last {
		return fmt.Sprintf("at least the first %d messages of its stream were never seen: what was announced in them alone is not indexed; "+
			"a replay endpoint that still has them helps", st.Last-n+1)
	}
	return ""
}

// findUnused says which events of workers were not used. They are not counted by
// scope.
func (c *checkup) findUnused(t kvevents.Tally) {
	var parts []string
	for r, n := range t.ByReason() {
		if reason := kvevents.Reason(r); n > 0 && reason != kvevents.Applied {
			parts = append(parts, fmt.Sprintf("%d %s", n, reason))
		}
	}
	if len(parts) > 0 {
		c.Find("events that were not used, of the workers of all models and tenants: " + strings.Join(parts, ", "))
	}
}
