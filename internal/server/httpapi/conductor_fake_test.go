package httpapi

import (
	"net/http"
	"slices"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/diagnose"
)

// conductorFake is a fake's share of the Conductor contract and of the doctor.
type conductorFake struct {
	registered       conductor.Registration
	unregistered     conductor.Filter
	removed          []string
	asked            conductor.Query // a copy, with the lists
	answer           conductor.Answer
	services         []conductor.Service
	selectionWorkers uint64
	diagnosed        diagnose.Request // a copy, with the lists
	maxBlocks        int
	diagnosis        diagnose.Diagnosis
}

// fakeConductor is the fake as the Conductor's routes see it.
type fakeConductor struct{ *fake }

func (f *fake) conductor() fakeConductor { return fakeConductor{f} }

func (f fakeConductor) Register(reg conductor.Registration) error {
	f.registered = reg
	return f.called()
}

func (f fakeConductor) Unregister(by conductor.Filter) ([]string, error) {
	f.unregistered = by
	return f.removed, f.called()
}

func (f fakeConductor) Query(req *conductor.Query, a *conductor.Answer) error {
	f.asked = *req
	f.asked.Tokens, f.asked.Hashes = slices.Clone(req.Tokens), slices.Clone(req.Hashes)
	a.Media = append(a.Media[:0], f.answer.Media...)
	a.Instances = append(a.Instances[:0], f.answer.Instances...)
	return f.called()
}

func (f fakeConductor) Services() []conductor.Service {
	_ = f.called()
	return f.services
}

func (f fakeConductor) Diagnose(req *conductor.Query, maxBlocks int) (*diagnose.Diagnosis, error) {
	f.maxBlocks = maxBlocks
	f.asked = *req
	f.asked.Tokens, f.asked.Hashes = slices.Clone(req.Tokens), slices.Clone(req.Hashes)
	return &f.diagnosis, f.called()
}

func (f *fake) Diagnose(req *diagnose.Request, maxBlocks int) (*diagnose.Diagnosis, error) {
	f.maxBlocks = maxBlocks
	f.diagnosed = *req
	f.diagnosed.Tokens, f.diagnosed.LocalHashes = slices.Clone(req.Tokens), slices.Clone(req.LocalHashes)
	return &f.diagnosis, f.called()
}

func (f fakeConductor) SelectionWorkers(_, _ *string) uint64 {
	_ = f.called()
	return f.selectionWorkers
}

// conductorHandlers are the two places of the Conductor's routes, by prefix.
func conductorHandlers(f *fake) map[string]http.Handler {
	return map[string]http.Handler{"": NewConductor(f.conductor(), Options{Log: zerolog.Nop()}), "/conductor": newHandler(f)}
}
