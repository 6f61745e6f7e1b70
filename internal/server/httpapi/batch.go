package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
)

const (
	// maxBatch bounds the requests of a batch.
	maxBatch = 1024
	// maxBatchAnswer is the length of a batch's answer, in bytes, beyond which its further
	// requests are refused: explanations grow with the number of ranks.
	maxBatchAnswer = 8 << 20
)

// batchBody is the body of POST /select_batch: {"requests": [{NAME: BODY}, …]}, where NAME is
// the name of the call and BODY its body. Each BODY is parsed only when its turn comes.
type batchBody struct {
	requests []batched
	scratch  *scratch[batchBody] // of the batch's HTTP request
	next     int                 // index in requests; those before it have had their turn
	dropped  int                 // bytes dropped from the start of the text
	refused  error               // why the rest is refused; nil: it is served
	body     selectBody          // body of the current request
}

// batched is one request of a batch.
type batched struct {
	reserve bool // /select_and_reserve, else /select
	at, end int  // offsets of its body in the text of the batch
}

// ReleaseText is called when a request of the batch has to wait. It gives up the batch's turn
// among the large bodies, and the text except for the bodies still to come. If there is no
// memory to keep those while waiting, they are refused.
func (b *batchBody) ReleaseText() {
	in := b.scratch.in
	in.releaseTurn()
	in.explained()
	rest := in.text[len(in.text):]
	if b.next < len(b.requests) {
		rest = in.text[b.requests[b.next].at-b.dropped:]
	}
	if in.memory == nil || 2*int64(len(rest)) > in.waiting && in.waiting > 0 { // at most when the text has halved: not a copy for each wait
		return
	}
	b.dropped += len(in.text) - len(rest)
	b.scratch.scan.Reset(bodyscan.JSON, nil)
	if !in.keepEnd(rest) {
		b.refused = errNoMemory(in.memory.waiting)
	}
}

type batchRoutes struct {
	selection selectRoutes
	api       api
	shapes    [2]*bodyscan.Object[selectBody] // of /select and of /select_and_reserve
}

// addBatch registers the route of batches.
func addBatch(r router, selection selectRoutes) {
	routes := batchRoutes{selection: selection, api: r.api, shapes: [2]*bodyscan.Object[selectBody]{
		newSelectShape(r.api.dialect), newSelectAndReserveShape(r.api.dialect),
	}}
	r.post(access.Call, "/select_batch", withBody(r.api, newBatchBody(), routes.serve))
}

// serve serves the requests in order, each as its own call would be. A failure does not stop
// the others.
func (r batchRoutes) serve(c request, b *batchBody, out []byte) (int, []byte, error) {
	format, _ := bodyFormat(c.Request.Header)
	out = append(out, `{"results":[`...)
	for i, q := range b.requests {
		b.next = i + 1
		if c.Request.Context().Err() != nil {
			return 0, nil, errClientGone
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, `{"status":`...)
		at := len(out)
		out = append(out, `000,"body":`...)
		status, answered, err := r.serveOne(c, b, q, format, out)
		retryAfter := ""
		if err != nil {
			var p problem
			p, retryAfter = r.api.report(c.Context, concealed(c.who, err))
			status, answered = r.api.render(c.Request, out, p)
		}
		out = answered
		strconv.AppendInt(out[:at], int64(status), 10) // in place of the zeros
		if retryAfter != "" {
			out = appendStringField(out, "retry_after", retryAfter)
		}
		out = append(out, '}')
	}
	return http.StatusOK, append(out, "]}"...), nil
}

// serveOne serves one request of a batch.
func (r batchRoutes) serveOne(c request, b *batchBody, q batched, format bodyscan.Format, out []byte) (int, []byte, error) {
	if len(out) > maxBatchAnswer {
		return 0, nil, contract.LimitErrorf(contract.Exhausted, contract.LimitBatch, "the answer to the batch is full (limit=%d bytes)", maxBatchAnswer)
	}
	if b.refused == nil {
		b.refused = b.makeRoom(c.Request.Context(), format, cap(out))
	}
	if b.refused != nil {
		return 0, nil, b.refused
	}
	resetSelectBody(&b.body)
	shape, serve := r.shapes[0], r.selection.selectWorker
	if q.reserve {
		shape, serve = r.shapes[1], r.selection.selectAndReserve
	}
	var s bodyscan.Scanner
	if err := shape.Decode(&s, format, b.scratch.in.text[q.at-b.dropped:q.end-b.dropped], &b.body); err != nil {
		return 0, nil, err
	}
	if c.who.Scoped() {
		if r.api.resolve(&b.body.req.Scope); !c.who.Sees(b.body.req.Scope) {
			return 0, nil, access.ErrForeignScope
		}
	}
	if b.body.req.Explain {
		if err := b.scratch.in.explain(c.Request.Context()); err != nil {
			return 0, nil, err
		}
	}
	b.body.req.Text = b
	return serve(c, &b.body, out)
}

// makeRoom reserves memory for an answer of n bytes and, for a large body, waits for its turn
// if a request has given it up. If that fails, all further requests are refused, so that a
// batch waits for memory at most once.
func (b *batchBody) makeRoom(ctx context.Context, format bodyscan.Format, n int) error {
	in := b.scratch.in
	err := in.expect(ctx, int64(n))
	in.explained()
	if err != nil {
		return err
	}
	return in.serve(ctx, servingBytes(format, len(in.text)))
}

func newBatchBody() *body[batchBody] {
	b := newBody(batchShape, func(b *batchBody) {
		*b = batchBody{requests: b.requests[:0], body: b.body}
		resetSelectBody(&b.body)
	}, func(b *batchBody) int { return selectBodySize(&b.body) + 32*cap(b.requests) }).
		permit(func(*access.Caller, *batchBody) error { return nil }) // serveOne checks the scope of each request
	b.attach = func(b *batchBody, x selection.TextReleaser) { b.scratch = x.(*scratch[batchBody]) }
	return b
}

var batchShape = bodyscan.NewObject(bodyscan.Field[batchBody]{Name: "requests", Required: true, Read: func(s *bodyscan.Scanner, b *batchBody) {
	for i := range s.Array() {
		if i == maxBatch {
			s.FailLimit(contract.LimitBatch, "a batch has at most "+strconv.Itoa(maxBatch)+" requests")
			return
		}
		b.requests = append(b.requests, readBatched(s))
	}
}})

func readBatched(s *bodyscan.Scanner) (q batched) {
	members := 0
	for name := range s.Map() {
		switch string(name) {
		case "select":
		case "select_and_reserve":
			q.reserve = true
		default:
			s.Fail("unknown call, expected `select` or `select_and_reserve`")
			continue
		}
		members++
		n := len(s.Value())
		q.at, q.end = s.Offset()-n, s.Offset()
	}
	if s.Err() == nil && members != 1 {
		s.Fail("expected one member, `select` or `select_and_reserve`")
	}
	return q
}
