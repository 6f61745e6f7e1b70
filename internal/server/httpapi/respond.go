package httpapi

import (
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/memory"
)

// autoLength is the longest answer for which net/http sets the Content-Length.
const autoLength = 2048

// respond writes an answer, given as JSON, in the format that the client wants.
func respond(c *gin.Context, status int, text []byte) {
	format := answerFormat(c.Request)
	if format == bodyscan.Msgpack {
		p := transcoded.Get().(*[]byte)
		text = bodyscan.AppendMsgpack((*p)[:0], text)
		defer func() {
			if cap(text) <= maxPooled {
				*p = text
				transcoded.Put(p)
			}
		}()
	}
	write(c, status, format, text)
}

// write writes an answer in its format.
func write(c *gin.Context, status int, format bodyscan.Format, text []byte) {
	h := c.Writer.Header()
	h["Content-Type"] = contentTypes[format]
	if len(text) > autoLength {
		h["Content-Length"] = []string{strconv.Itoa(len(text))}
	}
	c.Writer.WriteHeader(status)
	_, _ = c.Writer.Write(text) // fails only if the client is gone
}

// transcoded pools the memory of answers in msgpack.
var transcoded = sync.Pool{New: func() any { return new([]byte) }}

// send writes an answer, given as JSON, that may be long. held has the request's memory,
// and afterwards the answer's; *text becomes the text as written. An error means that
// nothing was written.
func (a api) send(c *gin.Context, status int, text *[]byte, held *allowance) error {
	if len(*text) <= memory.SmallBody {
		if err := held.send(c.Request.Context(), c.Writer, len(*text)); err != nil {
			return err
		}
		respond(c, status, *text)
		held.sent(c.Writer)
		return nil
	}
	n, format := len(*text), answerFormat(c.Request)
	if format == bodyscan.Msgpack { // release the JSON first: the client may read slowly
		*text = bodyscan.AppendMsgpack(make([]byte, 0, n), *text)
		n = cap(*text)
	}
	if err := held.send(c.Request.Context(), c.Writer, n); err != nil {
		return err
	}
	write(c, status, format, *text)
	held.sent(c.Writer)
	return nil
}

// answerFunc handles a request: it appends a JSON answer to out and returns it
// with its status, or an error that determines both.
type answerFunc func(c request, out []byte) (status int, answer []byte, err error)

// answer has the pooled memory that a request without a body uses.
type answer struct {
	out       []byte
	allowance allowance
}

// keep makes out the answer, unless err is set: then the memory stays what it was, for the error's text.
func (a *answer) keep(out []byte, err error) error {
	if err == nil {
		a.out = out
	}
	return err
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// serve returns an endpoint that calls use, once. Callers with a scope may not use it.
func (a api) serve(use answerFunc) endpoint {
	return a.served(func(c request, x *answer, last int64) (status int, err error) {
		if err = x.allowance.expect(c.Request.Context(), last); err != nil {
			return 0, err
		}
		status, out, err := use(c, x.out[:0])
		return status, x.keep(out, err)
	})
}

// serveList is serve for an answer that may be long and changes nothing: it may be made again, see
// allowance.build. prepare does what waits for others, and returns what appends the answer.
func (a api) serveList(prepare func(c request) (answerFunc, error)) endpoint {
	return a.served(func(c request, x *answer, last int64) (status int, err error) {
		use, err := prepare(c)
		if err != nil {
			return 0, err
		}
		status, out, err := x.allowance.build(c.Request.Context(), last, x.out, func(out []byte) (int, []byte, error) { return use(c, out) })
		return status, x.keep(out, err)
	})
}

// list is serveList for an answer that waits for nobody.
func (a api) list(use answerFunc) endpoint {
	return a.serveList(func(request) (answerFunc, error) { return use, nil })
}

// served returns an endpoint for which makeAnswer makes the answer x.out. last is the length of the last one.
func (a api) served(makeAnswer func(c request, x *answer, last int64) (status int, err error)) endpoint {
	var last atomic.Int64 // the next answer will be similar
	return endpoint{handle: func(c request) {
		x := answers.Get().(*answer)
		x.allowance.memory = a.memory
		defer func() {
			if x != nil { // a panic
				x.allowance.close()
			}
		}()
		status, err := makeAnswer(c, x, last.Load())
		if err == nil {
			last.Store(int64(len(x.out)))
			err = a.send(c.Context, status, &x.out, &x.allowance)
		}
		if err != nil {
			x.out = a.fail(c.Context, x.out[:0], err)
		}
		x.allowance.close()
		if cap(x.out) <= maxPooled {
			answers.Put(x)
		}
		x = nil
	}}
}

// checked returns an endpoint that runs check before the body is read.
func (a api) checked(check func(request) error, e endpoint) endpoint {
	return endpoint{scoped: e.scoped, handle: func(c request) {
		if err := check(c); err != nil {
			a.fail(c.Context, nil, err)
			return
		}
		e.handle(c)
	}}
}

func workerID(c request) error {
	_, err := pathWorkerID(c)
	return err
}

func reservationID(c request) error {
	_, err := pathValue(c, "reservation_id")
	return err
}

// pathValue returns a percent-decoded parameter of the path. An empty one is
// not part of any route (axum 0.8).
func pathValue(c request, name string) (string, error) {
	v, err := url.PathUnescape(c.Param(name))
	switch {
	case err != nil || !utf8.ValidString(v):
		return "", badRequest("Invalid URL: Invalid UTF-8 in `" + name + "`")
	case v == "":
		return "", errRouteNotFound
	}
	return v, contract.CheckText(name, v)
}

// pathWorkerID is pathValue for the number of a worker.
func pathWorkerID(c request) (uint64, error) {
	v, err := pathValue(c, "worker_id")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0, badRequest("Invalid URL: Cannot parse `" + v + "` to a `u64`")
	}
	return n, nil
}
