package service

import (
	"math"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/waitqueue"
	"github.com/select-service/select-service/pkg/catalog"
)

// CheckOverloadLate lets the selections of a scope be tested for overload under
// the ledger's lock only, or early, too, as without wait queue. Late, the scope gets
// a queue in which nothing ever waits. It must not be called while selections run.
func (s *Service) CheckOverloadLate(sc catalog.Scope, late bool) {
	state := s.scopes.Of(sc)
	if state == nil {
		return
	}
	var policy *admission.Policy
	if late {
		policy = admission.Config{Threshold: new(math.MaxFloat64)}.ForModel(sc.Model)
	}
	state.Queue = waitqueue.New(waitqueue.Config{}, policy)
}
