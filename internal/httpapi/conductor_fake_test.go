package httpapi

import (
	"net/http"
	"slices"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/service"
)

// conductorFake is a fake's share of the Conductor contract and of the doctor.
type conductorFake struct {
	registered   conductor.Registration
	unregistered conductor.Filter
	removed      []string
	asked        service.ConductorQuery // a copy, with the lists
	answer       conductor.Answer
	services     []service.ConductorService
	diagnosed    service.DiagnoseRequest // a copy, with the lists
	maxBlocks    int
	diagnosis    service.Diagnosis
}

func (f *fake) ConductorRegister(reg conductor.Registration) error {
	f.registered = reg
	return f.called()
}

func (f *fake) ConductorUnregister(by conductor.Filter) ([]string, error) {
	f.unregistered = by
	return f.removed, f.called()
}

func (f *fake) ConductorQuery(req *service.ConductorQuery, a *conductor.Answer) error {
	f.asked = *req
	f.asked.Tokens, f.asked.Hashes = slices.Clone(req.Tokens), slices.Clone(req.Hashes)
	a.Media = append(a.Media[:0], f.answer.Media...)
	a.Instances = append(a.Instances[:0], f.answer.Instances...)
	return f.called()
}

func (f *fake) ConductorServices() []service.ConductorService {
	_ = f.called()
	return f.services
}

func (f *fake) ConductorDiagnose(req *service.ConductorQuery, maxBlocks int) (*service.Diagnosis, error) {
	f.maxBlocks = maxBlocks
	f.asked = *req
	f.asked.Tokens, f.asked.Hashes = slices.Clone(req.Tokens), slices.Clone(req.Hashes)
	return &f.diagnosis, f.called()
}

func (f *fake) Diagnose(req *service.DiagnoseRequest, maxBlocks int) (*service.Diagnosis, error) {
	f.maxBlocks = maxBlocks
	f.diagnosed = *req
	f.diagnosed.Tokens, f.diagnosed.LocalHashes = slices.Clone(req.Tokens), slices.Clone(req.LocalHashes)
	return &f.diagnosis, f.called()
}

// conductorHandlers are the two places of the Conductor's routes, by prefix.
func conductorHandlers(f *fake) map[string]http.Handler {
	return map[string]http.Handler{"": NewConductor(f, Options{Log: zerolog.Nop()}), "/conductor": newHandler(f)}
}
