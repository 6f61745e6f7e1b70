package selection

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
)

// timeline notes when the steps of an attempt began and ended, if its request is traced. They
// become spans when the attempt is over: under a lock only the clock is read.
type timeline struct {
	span  *tracing.Span // of the attempt; nil: it is not traced, and the methods do nothing
	steps []step
	mark  time.Time // when the current step began
	turn  time.Time // when the attempt was booked or looked at the loads, the last time; zero: not yet
}

// step is a part of an attempt's work that is over.
type step struct {
	name         string
	began, ended time.Time
}

// maxSteps bounds the steps of an attempt that runs again and again.
const maxSteps = 64

// begin begins a step.
func (t *timeline) begin() {
	if t.span != nil {
		t.mark = time.Now()
	}
}

// end ends the step that begin began, and begins the next.
func (t *timeline) end(name string) {
	if t.span != nil {
		now := time.Now()
		t.add(name, t.mark, now)
		t.mark = now
	}
}

// beginTurn begins the step of an attempt whose turn has come.
func (t *timeline) beginTurn() {
	t.begin()
	t.turn = t.mark
}

// waited adds the time in a queue since the given one, up to the attempt's turn if it came.
func (t *timeline) waited(since time.Time) {
	if t.span == nil {
		return
	}
	until := t.turn
	if until.Before(since) {
		until = time.Now()
	}
	t.add("wait", since, until)
}

func (t *timeline) add(name string, began, ended time.Time) {
	if len(t.steps) < maxSteps {
		t.steps = append(t.steps, step{name, began, ended})
	}
}

// endTrace ends the span of an attempt, with what it has decided. Texts of the request are
// borrowed, so that the span gets copies.
func (a *attempt) endTrace(err error) {
	t := &a.timeline
	if t.span == nil {
		return
	}
	for _, s := range t.steps {
		t.span.Step(s.name, s.began, s.ended)
	}
	about := append(make([]attribute.KeyValue, 0, 16),
		attribute.String("select_service.model", catalog.Clip(a.Scope.Model)), attribute.String("select_service.tenant", catalog.Clip(a.Scope.Tenant)),
		attribute.Bool("select_service.reserve", a.reserve))
	if id := a.SelectionID; id != nil {
		about = append(about, attribute.String("select_service.selection_id", strings.Clone(*id)))
	}
	if size := a.prompt.size; size.Tokens > 0 {
		about = append(about, attribute.Int64("select_service.prompt.tokens", int64(size.Tokens)), attribute.Int("select_service.prompt.blocks", size.Blocks))
	}
	if err != nil {
		t.span.Fail(err.Error())
	} else {
		about = append(about, attribute.Int64("select_service.worker_id", int64(a.result.Rank.Worker)), attribute.Int64("select_service.dp_rank", int64(a.result.Rank.DP)))
		if id := a.result.ReservationID; id != nil {
			about = append(about, attribute.String("select_service.reservation_id", strings.Clone(*id)))
		}
		if a.retry.repeated {
			about = append(about, attribute.Bool("select_service.repeated", true))
		} else if a.scope.state != nil {
			about = append(about, attribute.Int64("select_service.cached_blocks", int64(a.prompt.cachedBlocks(a.choice.chosen.Slot))))
		}
	}
	t.span.Set(about...)
	t.span.End()
	*t = timeline{steps: t.steps[:0]}
}
