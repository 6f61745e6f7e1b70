package gateway

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection"
)

// The headers by which a client says when it wants its first token and its whole answer, in milliseconds, and what is to
// happen if that cannot be. The first two are llm-d's, under its present and its former name.
const (
	ttftHeader     = "x-llm-d-slo-ttft-ms"
	ttftAlias      = "x-slo-ttft-ms"
	deadlineHeader = "x-select-deadline-ms"
	onMissHeader   = "x-select-on-miss"
)

// wants has the values of these headers, "" for those that are missing, and the time from which they count.
type wants struct {
	ttft, ttftAlias, deadline, onMiss string
	from                              time.Time
}

// readWants reads what the request wants of its times. The problem names the header that is malformed, unless what is wanted
// has no effect.
func (r *request) readWants() *Problem {
	w := &r.head.wants
	err := w.read(r)
	switch {
	case err == nil:
		return nil
	case r.api.IgnoresTargets():
		r.oddTarget = w.ttft != "" || w.ttftAlias != "" || w.deadline != ""
		return nil
	}
	return errInvalid("invalid_target", err.Error())
}

func (w *wants) read(r *request) (err error) {
	name := ttftHeader
	if w.ttft == "" {
		name = ttftAlias
	}
	if text := cmp.Or(w.ttft, w.ttftAlias); text != "" {
		within, err := selection.TTFTTargetOf(name, milliseconds(text))
		if err != nil {
			return err
		}
		r.firstToken = w.from.Add(within)
	}
	if w.deadline != "" {
		if r.deadline, err = selection.DeadlineOf(deadlineHeader, milliseconds(w.deadline), w.from); err != nil {
			return err
		}
	}
	if w.onMiss != "" {
		r.refuseOnMiss, err = selection.RefusesOnMiss(onMissHeader, strings.ToLower(strings.TrimSpace(w.onMiss)))
	}
	return err
}

// milliseconds returns the decimal number in a header; 0, which is none, for another text.
func milliseconds(text string) float64 {
	ms, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || strings.ContainsAny(text, "xX_") { // as in programs
		return 0
	}
	return ms
}
