package httpapi

import (
	"net/http"
	"strconv"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// loadTaker takes reports of the load of engines.
type loadTaker interface {
	// ReportLoadIn takes the reports of a worker's ranks, all or none; it treats workers of scopes
	// that do not match own as unknown. It must not keep the reports after the call.
	ReportLoadIn(own catalog.ScopeFilter, worker uint64, of []node.RankReport) error
}

type loadTakerRoutes struct{ svc loadTaker }

func (r loadTakerRoutes) addTo(e router) {
	e.add(http.MethodPut, access.Operate, "/workers/:worker_id/load", e.api.checked(workerID, withBody(e.api, newLoadBody(), r.put)))
}

func (r loadTakerRoutes) put(c request, b *loadBody, out []byte) (int, []byte, error) {
	id, err := pathWorkerID(c)
	if err != nil {
		return 0, nil, err
	}
	c.about(loadReport{id, len(b.ranks)})
	return http.StatusOK, appendOK(out), r.svc.ReportLoadIn(c.who.Scope(), id, b.ranks)
}

// loadReport is a report in an audit line.
type loadReport struct {
	worker uint64
	ranks  int
}

func (r loadReport) describe(e *zerolog.Event) { e.Uint64("worker_id", r.worker).Int("ranks", r.ranks) }

// loadBody is the body of PUT /workers/{worker_id}/load.
type loadBody struct{ ranks []node.RankReport }

func newLoadBody() *body[loadBody] {
	reset := func(b *loadBody) { b.ranks = b.ranks[:0] }
	size := func(b *loadBody) int { return cap(b.ranks) * 256 }
	return newBody(loadShape, reset, size).permit(checkedByID[loadBody])
}

var loadShape = bodyscan.NewObject(bodyscan.Field[loadBody]{Name: "ranks", Required: true, Read: func(s *bodyscan.Scanner, b *loadBody) {
	for dp := range s.MapUint32() {
		of := node.RankReport{DP: dp, Report: load.Report{Source: load.Told}}
		reportShape.Read(s, &of.Report)
		if len(b.ranks) == catalog.MaxRanks {
			s.Fail("more than " + strconv.Itoa(catalog.MaxRanks) + " ranks")
			return
		}
		b.ranks = append(b.ranks, of)
	}
}}).Strict()

// reportShape is the report of one rank.
var reportShape = bodyscan.NewObject(
	amount("running", func(r *load.Report) *load.Amount { return &r.Running }, 0),
	amount("waiting", func(r *load.Report) *load.Amount { return &r.Waiting }, 0),
	amount("kv_tokens_used", func(r *load.Report) *load.Amount { return &r.KVTokensUsed }, 0),
	amount("kv_tokens_total", func(r *load.Report) *load.Amount { return &r.KVTokensTotal }, 1),
	amount("waiting_uncached_tokens", func(r *load.Report) *load.Amount { return &r.WaitingUncachedTokens }, 0),
	amount("max_running", func(r *load.Report) *load.Amount { return &r.MaxRunning }, 1),
).Strict()

// amount is a member that is unknown if it is null, left out, or less than least.
func amount(name string, of func(*load.Report) *load.Amount, least uint64) bodyscan.Field[load.Report] {
	return bodyscan.Field[load.Report]{Name: name, Read: func(s *bodyscan.Scanner, r *load.Report) {
		if s.Null() {
			return
		}
		switch n := s.Uint64(); {
		case n > load.MaxAmount:
			s.Fail("is " + strconv.FormatUint(n, 10) + ", the maximum is " + strconv.FormatUint(load.MaxAmount, 10))
		case n >= least:
			*of(r) = load.Known(n)
		}
	}}
}
