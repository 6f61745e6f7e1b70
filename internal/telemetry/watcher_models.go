package telemetry

import (
	"cmp"
	"slices"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
)

// modelTally has the counts of one model's selections at a check.
type modelTally struct {
	counts.Tally

	refusing bool // some were refused since the previous check
}

// modelNews is a change of one model: its selections are refused, or no longer are.
type modelNews struct {
	model           string // "" stands for the models without counters of their own
	issued, refused uint64 // since the previous check
	causes          [counts.NumCauses]uint64
}

// MarshalZerologObject writes the fields.
func (n modelNews) MarshalZerologObject(e *zerolog.Event) {
	e.Str("model", catalog.Clip(n.model)).Uint64("selections", n.issued)
	if !addCount(e, "refused", n.refused) {
		return
	}
	causes := zerolog.Dict() // a refusal may have several causes
	for c, count := range n.causes {
		addCount(causes, counts.CauseLabel(c), count)
	}
	e.Dict("causes", causes)
}

func (n *modelNews) level() zerolog.Level {
	if n.refused > 0 {
		return zerolog.WarnLevel
	}
	return zerolog.InfoLevel
}

func (n *modelNews) text() string {
	if n.refused > 0 {
		return "selections of a model were refused"
	}
	return "selections of a model are no longer refused"
}

// lookAtModels logs up to maxLines models whose selections were refused or are no longer
// refused, those with most refusals first. It also logs selections that no worker could serve.
func (w *Watcher) lookAtModels() {
	var news []modelNews
	unserved := uint64(0)
	seen := make(map[*counts.ModelSelections]modelTally)
	compare := func(model string, stats *counts.ModelSelections) {
		now, was := modelTally{Tally: stats.Tally()}, w.last.models[stats]
		n := modelNews{model: model, issued: now.Issued - was.Issued, refused: now.Refused - was.Refused}
		for c := range n.causes {
			n.causes[c] = now.Causes[c] - was.Causes[c]
		}
		now.refusing = n.refused > 0
		if now.refusing || was.refusing && (model == "" || w.catalog.HasModel(model)) {
			news = append(news, n)
		}
		unserved += now.Unserved - was.Unserved
		seen[stats] = now
	}
	compare("", w.selections.Others())
	for model, stats := range w.selections.Models() {
		compare(model, stats)
	}
	w.last.models = seen

	slices.SortFunc(news, func(a, b modelNews) int {
		return cmp.Or(cmp.Compare(b.refused, a.refused), cmp.Compare(a.model, b.model))
	})
	for _, n := range news[:min(len(news), maxLines)] {
		w.log.WithLevel(n.level()).EmbedObject(n).Msg(n.text())
	}
	if len(news) > maxLines {
		rest := news[maxLines:]
		w.log.WithLevel(rest[0].level()).Int("more", len(rest)).Msg("refusals of more models have begun, gone on or ended")
	}
	w.lookAtUnserved(unserved)
}

// lookAtUnserved logs how many selections came for scopes without a schedulable
// worker, and one of the scopes.
func (w *Watcher) lookAtUnserved(n uint64) {
	example := w.selections.TakeUnserved()
	if n == 0 || w.scopes.Closing() { // a closing service refuses them all
		return
	}
	line := w.log.Warn().Uint64("selections", n)
	if example != nil {
		line.Dict("example", zerolog.Dict().Str("model", example.Model).Str("tenant", example.Tenant))
	}
	line.Msg("selections came for models or tenants without schedulable workers")
}
