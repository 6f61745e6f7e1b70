package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// policyHeader names the queue class of a selection.
const policyHeader = "X-Dynamo-Meta-Policy-Class"

// selecter chooses workers. The request is lent for the time of the call.
type selecter interface {
	Select(ctx context.Context, req *service.SelectRequest, reserve bool) (service.Selection, error)
}

type selectRoutes struct {
	svc selecter
	d   dialect
}

func (r selectRoutes) choose(c *gin.Context, b *selectBody, out []byte) (int, []byte, error) {
	b.req.Keep = r.d == dialect16 && b.req.SelectionID != nil
	b.req.Advisory = b.advisory
	return r.answer(c, b, out, false)
}

func (r selectRoutes) chooseAndReserve(c *gin.Context, b *selectBody, out []byte) (int, []byte, error) {
	if r.d == dialect16 {
		b.req.ReservationID = b.req.SelectionID // decision E1
	}
	b.req.IfExists = b.safety.ifExists
	if b.req.IfExists == service.ReturnFirst && b.req.ReservationID == nil {
		return 0, nil, r.d.errNoID()
	}
	var err error
	if b.req.Lease, err = b.safety.lease(); err != nil {
		return 0, nil, err
	}
	return r.answer(c, b, out, true)
}

func (r selectRoutes) answer(c *gin.Context, b *selectBody, out []byte, reserve bool) (int, []byte, error) {
	b.req.PolicyClass = strings.TrimSpace(c.Request.Header.Get(policyHeader))
	b.req.Session = b.session.name()
	b.req.Detailed = r.d == dialect16
	sel, err := r.svc.Select(c.Request.Context(), &b.req, reserve)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, r.d.appendSelection(out, &sel, reserve), nil
}

// appendSelection appends the answer of a selection. reserved tells that it was
// booked, too.
func (d dialect) appendSelection(out []byte, s *service.Selection, reserved bool) []byte {
	if s.PlacementOnly {
		return d.appendReservation(out, &service.Reservation{
			ID: *s.ReservationID, Scope: s.Scope, Rank: s.Rank, Endpoint: s.Endpoint, Lease: s.Lease,
		})
	}
	out = append(out, '{')
	out = d.appendIDs(out, s)
	if reserved && d == dialect16 {
		out = appendList(appendKey(out, "sequence_hashes"), s.SequenceHashes, appendHash)
		out = appendUintField(out, "isl_tokens", s.ISLTokens)
		out = strconv.AppendBool(appendKey(out, "track_prefill_tokens"), s.TrackPrefill)
	}
	out = d.appendPlacement(out, s.Scope, s.Rank, s.Endpoint)
	out = appendUintField(out, "block_size", s.BlockSize)
	out = appendOverlap(out, &s.Overlap)
	out = appendUintField(out, "effective_prefill_tokens", s.EffectivePrefillTokens)
	if d == dialect16 {
		out = appendUintField(out, "potential_decode_blocks", s.PotentialDecodeBlocks)
		out = appendBoolIf(out, "decode_busy", s.DecodeBusy)
		if s.WorkerLoad != nil {
			out = appendWorkerLoad(out, s.WorkerLoad)
		}
	}
	out = appendLease(out, s.Lease)
	return append(out, '}')
}

// appendIDs appends the ids that a selection has. In the 1.6 dialect the booking's
// is that of the selection (decision E1).
func (d dialect) appendIDs(out []byte, s *service.Selection) []byte {
	selection, reservation := s.SelectionID, s.ReservationID
	if d == dialect16 && reservation != nil {
		selection, reservation = reservation, nil
	}
	if selection != nil {
		out = appendStringField(out, "selection_id", *selection)
	}
	if reservation != nil {
		out = appendStringField(out, "reservation_id", *reservation)
	}
	return out
}

// appendHash appends a hash in the form of the contract's answers: signed.
func appendHash(out []byte, hash uint64) []byte { return strconv.AppendInt(out, int64(hash), 10) }

func appendOverlap(out []byte, o *service.OverlapSummary) []byte {
	out = append(appendKey(out, "overlap"), '{')
	out = appendUintField(out, "longest_matched", o.LongestMatched)
	out = appendUintField(out, "gpu", o.GPU)
	out = append(appendKey(out, "dp"), '{')
	for i, rank := range o.DP {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = strconv.AppendUint(out, uint64(rank.DP), 10)
		out = append(out, '"', ':')
		out = strconv.AppendUint(out, uint64(rank.Tokens), 10)
	}
	out = append(out, '}')
	out = appendUintField(out, "cpu", o.CPU)
	out = appendUintField(out, "disk", o.Disk)
	return append(out, '}')
}

// appendWorkerLoad leaves out what is not known.
func appendWorkerLoad(out []byte, l *service.WorkerLoad) []byte {
	out = append(appendKey(out, "worker_load"), '{')
	out = appendUintField(out, "active_prefill_tokens", l.ActivePrefillTokens)
	out = appendUintField(out, "prefill_token_capacity", l.PrefillTokenCapacity)
	if l.TotalKVBlocks != nil {
		out = appendUintField(out, "total_kv_blocks", *l.TotalKVBlocks)
	}
	out = appendBoolIf(out, "prefill_busy", l.PrefillBusy)
	return append(out, '}')
}

// appendPlacement appends where a request runs.
func (d dialect) appendPlacement(out []byte, scope catalog.Scope, rank catalog.Rank, endpoint string) []byte {
	out = d.appendScope(out, scope)
	out = appendUintField(out, "worker_id", rank.Worker)
	out = appendUintField(out, "dp_rank", rank.DP)
	return appendStringField(out, "endpoint", endpoint)
}
