package diagnose

import (
	"fmt"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// FindStreams adds findings about the incomplete streams of owners. ok is false for a rank that is
// none.
func (d *Diagnosis) FindStreams(streams []kvevents.StreamStatus, owner func(catalog.Rank) (who CacheOwner, ok bool)) {
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

// streamTrouble returns what is missing of a stream's messages, "" for nothing.
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
	// Some messages may have been applied twice, so this is a lower bound of the numbers up to the
	// last that were never seen. Lost ones are reported above, and a restart begins a new count.
	if n := st.Applied + st.Lost; st.HasLast && n <= st.Last {
		return fmt.Sprintf("at least the first %d messages of its stream were never seen: what was announced in them alone is not indexed; "+
			"a replay endpoint that still has them helps", st.Last-n+1)
	}
	return ""
}
