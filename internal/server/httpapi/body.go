package httpapi

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

const (
	// maxBody is the longest request body of the selection service in bytes,
	// inclusive (dynamo-kv-router 1.3.1: REQUEST_BODY_LIMIT_BYTES).
	maxBody = 8 << 20
	// maxPooled bounds an idle scratch, in bytes.
	maxPooled = 1 << 20
	// bodyTimeout is how long a client may take to send a body.
	bodyTimeout = 30 * time.Second
)

// body describes the body of a route, and pools the memory to read it.
type body[T any] struct {
	shape          *bodyscan.Object[T]
	reset          func(*T)                         // empties a T and sets its defaults; may keep its slices
	size           func(*T) int                     // bytes that an empty T still holds
	limit          int                              // bytes of the longest text, inclusive
	attach         func(*T, selection.TextReleaser) // gives the request what has its text; nil: it needs none
	anyContentType bool                             // the Content-Type is not checked
	mayBeMissing   bool                             // a request without a body is one with {}
	// passesOn: a part of the text is passed on as it is, in JSON. It is not parsed here, and who gets it
	// may take long: the request takes no turn of those that are.
	passesOn bool
	// within returns an error if the request is outside the caller's scope; nil: callers with a
	// scope may not use the route.
	within func(*access.Caller, *T) error
	// names returns the scope of a request that may name a model by a further name; nil: none does.
	names func(*T) *catalog.Scope
	pool  sync.Pool // of *scratch[T]

	wide     func(*T) bool // whether the answer's length grows with the number of ranks; nil: never
	explains bool          // such an answer is an explanation
	answered atomic.Int64  // length of the last such answer in bytes, an estimate for the next
}

// scratch is the pooled memory that one request with a body uses.
type scratch[T any] struct {
	in   *incoming // while it is used
	out  []byte    // of the answer
	scan bodyscan.Scanner
	req  T
}

// ReleaseText frees the text of a request that has to wait. The values read from it stay.
func (s *scratch[T]) ReleaseText() {
	s.scan.Reset(bodyscan.JSON, nil)
	s.in.drop()
	s.in.close()
}

// newBody describes bodies of the given shape. A nil reset zeroes the T; a nil size
// means that an empty T holds no memory.
func newBody[T any](shape *bodyscan.Object[T], reset func(*T), size func(*T) int) *body[T] {
	if reset == nil {
		reset = func(t *T) {
			var zero T
			*t = zero
		}
	}
	if size == nil {
		size = func(*T) int { return 0 }
	}
	b := &body[T]{shape: shape, reset: reset, size: size, limit: maxBody}
	b.pool.New = func() any {
		x := new(scratch[T])
		reset(&x.req)
		return x
	}
	return b
}

// permit sets body.within: who may send which bodies.
func (b *body[T]) permit(within func(*access.Caller, *T) error) *body[T] {
	b.within = within
	return b
}

// permitNamed is permit for bodies whose scope may have a further name of a model: the model's own scope must be
// within the caller's, whatever the name.
func (b *body[T]) permitNamed(scope func(*T) *catalog.Scope) *body[T] {
	b.names = scope
	return b.permit(inScope(scope))
}

// perRank marks bodies whose answers grow with the number of ranks. Unless they are explanations, the use
// must be one that can be called again (allowance.build).
func (b *body[T]) perRank() *body[T] {
	b.wide = func(*T) bool { return true }
	return b
}

// release returns x to the pool. Nothing may refer to its memory any more.
func (b *body[T]) release(x *scratch[T]) {
	b.reset(&x.req)
	x.scan.Reset(bodyscan.JSON, nil)
	x.in = nil
	if cap(x.out)+b.size(&x.req) <= maxPooled {
		b.pool.Put(x)
	}
}

// empty drops all that x has read, but keeps its answer.
func (b *body[T]) empty(x *scratch[T]) {
	x.scan.Reset(bodyscan.JSON, nil)
	x.in.drop()
	var zero T
	x.req = zero
	b.reset(&x.req)
}

// read reads the text of the request into in, and then parses it into a scratch, nil if there
// was no text. It takes a scratch from the pool only when the text is complete, so that slow
// clients do not occupy that memory.
func (b *body[T]) read(c *gin.Context, in *incoming) (*scratch[T], error) {
	format, known := bodyFormat(c.Request.Header)
	missing := b.mayBeMissing && c.Request.ContentLength == 0
	if (!known && !b.anyContentType || b.passesOn && format != bodyscan.JSON) && !missing {
		return nil, errContentType
	}
	if err := in.read(c, b.limit); err != nil {
		return nil, err
	}
	ctx := c.Request.Context()
	if !b.passesOn {
		if err := in.serve(ctx, servingBytes(format, len(in.text))); err != nil {
			return nil, err
		}
	}
	x := b.pool.Get().(*scratch[T])
	x.in = in
	if in.memory != nil {
		x.scan.UseCache(in.memory.scanned)
	}
	if b.attach != nil {
		b.attach(&x.req, x)
	}
	if missing {
		return x, nil
	}
	if err := b.shape.Decode(&x.scan, format, in.text, &x.req); err != nil {
		return x, err
	}
	if b.wide == nil || !b.wide(&x.req) {
		return x, nil
	}
	if err := in.expect(ctx, b.answered.Load()); err != nil || !b.explains {
		return x, err
	}
	return x, in.explain(ctx)
}

// withBody returns an endpoint that decodes the body and calls use, which appends the answer
// to out, as in serve.
func withBody[T any](a api, b *body[T], use func(c request, req *T, out []byte) (int, []byte, error)) endpoint {
	return endpoint{scoped: b.within != nil, handle: func(c request) {
		in := incomings.Get().(*incoming)
		in.memory = a.memory
		defer func() {
			if in != nil { // after a panic
				in.close()
			}
		}()
		x, err := b.read(c.Context, in)
		if err == nil && c.who.Scoped() {
			if b.names != nil {
				a.resolve(b.names(&x.req))
			}
			err = b.within(c.who, &x.req)
		}
		if err == nil {
			var status int
			var out []byte
			if b.wide != nil && !b.explains && b.wide(&x.req) { // it changes nothing
				status, out, err = in.build(c.Request.Context(), 0, x.out, func(out []byte) (int, []byte, error) { return use(c, &x.req, out) })
			} else {
				status, out, err = use(c, &x.req, x.out[:0])
			}
			if err == nil {
				if b.wide != nil && b.wide(&x.req) {
					b.answered.Store(int64(len(out)))
				}
				if x.out = out; in.turn > 0 && len(out) > autoLength || len(out) > memory.SmallBody {
					b.empty(x) // the client may read slowly
				}
				err = a.send(c.Context, status, &x.out, &in.allowance)
			}
		}
		if err != nil {
			var out []byte
			if x != nil {
				out = x.out[:0]
			}
			if out = a.fail(c.Context, out, concealed(c.who, err)); x != nil {
				x.out = out
			}
		}
		in.close()
		// Not deferred: after a panic something may still refer to the memory.
		if x != nil {
			b.release(x)
		}
		in.release()
		in = nil
	}}
}

// boundBody limits the time for sending the body to bodyTimeout. This also covers a body that
// no route reads: net/http waits for it before it writes the answer.
func boundBody(c *gin.Context) {
	if c.Request.ContentLength != 0 {
		setReadDeadline(c, time.Now().Add(bodyTimeout))
	}
}

// setReadDeadline sets the read deadline of the request's connection. Only the response writers
// of tests have none.
func setReadDeadline(c *gin.Context, t time.Time) {
	_ = http.NewResponseController(c.Writer).SetReadDeadline(t)
}

// isDisconnect reports whether a read failed because the connection ended, not because the body
// is malformed or late.
func isDisconnect(err error) bool {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	broken, ok := errors.AsType[*net.OpError](err)
	return ok && !broken.Timeout()
}

// required describes a required member.
func required[T, V any](name string, of func(*T) *V, read func(*bodyscan.Scanner) V) bodyscan.Field[T] {
	return bodyscan.Field[T]{Name: name, Required: true, Read: bodyscan.Set(of, read)}
}

// field describes an optional member; null means the same as its absence.
func field[T, V any](name string, of func(*T) *V, read func(*bodyscan.Scanner) V) bodyscan.Field[T] {
	return bodyscan.Field[T]{Name: name, Read: bodyscan.OrNull(of, read)}
}

// optional is field for a pointer, which stays nil if the member is absent.
func optional[T, V any](name string, of func(*T) **V, read func(*bodyscan.Scanner) V) bodyscan.Field[T] {
	return bodyscan.Field[T]{Name: name, Read: bodyscan.Optional(of, read)}
}

// readText reads an id, a name or another text that the service keeps or passes on.
func readText(s *bodyscan.Scanner) string {
	text := s.Text()
	if len(text) > contract.MaxText {
		s.FailLimit(contract.LimitText, contract.TooLong("the text", len(text), contract.MaxText))
		return ""
	}
	return string(text)
}

// readISLTokens reads the length of a prompt.
func readISLTokens(s *bodyscan.Scanner) uint64 {
	n := s.Uint64()
	if n > contract.MaxISLTokens {
		s.FailLimit(contract.LimitISLTokens, "is "+strconv.FormatUint(n, 10)+", the maximum is "+strconv.FormatUint(contract.MaxISLTokens, 10))
	}
	return n
}
