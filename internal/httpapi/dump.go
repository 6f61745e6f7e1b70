package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/bodyscan"
	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/recovery"
)

// dumper writes the index as the JSON text of GET /dump, in the form of a
// contract and in large chunks.
type dumper interface {
	Dump(ctx context.Context, w io.Writer, form contract.Version) error
	// DumpMsgpack writes it in msgpack.
	DumpMsgpack(ctx context.Context, w io.Writer, form contract.Version) error
	// Recovering reports whether the index is still being filled from a peer's dump.
	Recovering() bool
}

// chunkStall is how long a client may leave a chunk of an answer unread. It keeps its
// place among the readers meanwhile.
const chunkStall = 15 * time.Second

// Readers bounds who reads a long answer at a time, and what that takes of an account.
type Readers struct {
	limit   string // one of contract.Limits
	most    int64
	account *budget.Account
	reading atomic.Int64
}

// readerMemory is what a reader takes: buffers of the writer, of the connection and of
// the socket.
const readerMemory = 256 << 10

// NewReaders returns a bound of most readers, which is named limit.
func NewReaders(limit string, most int, account *budget.Account) *Readers {
	return &Readers{limit: limit, most: int64(most), account: account}
}

// enter takes a place, for which leave has to be called, or returns why not.
func (r *Readers) enter() error {
	if r == nil {
		return nil
	}
	if r.reading.Add(1) > r.most {
		r.reading.Add(-1)
		return contract.LimitErrorf(contract.Exhausted, r.limit, "%d readers are answered at a time (--max-%s)",
			r.most, strings.ReplaceAll(r.limit, "_", "-"))
	}
	if !r.account.Reserve(readerMemory) {
		r.reading.Add(-1)
		return contract.LimitErrorf(contract.Exhausted, contract.LimitMemory, "no memory for a further reader (--max-memory)")
	}
	return nil
}

func (r *Readers) leave() {
	if r != nil {
		r.account.Release(readerMemory)
		r.reading.Add(-1)
	}
}

// chunkWriter gives each chunk its own deadline: a dump may take long, but must not
// wait for a client that has stopped reading.
type chunkWriter struct {
	http.ResponseWriter
	conn *http.ResponseController
}

func (w chunkWriter) Write(chunk []byte) (int, error) {
	_ = w.conn.SetWriteDeadline(time.Now().Add(chunkStall)) // only tests have writers without deadlines
	return w.ResponseWriter.Write(chunk)
}

type dumpRoutes struct {
	svc dumper
	api api
}

// dump streams: an index has millions of blocks.
func (r dumpRoutes) dump(c *gin.Context) {
	if r.svc.Recovering() { // asked before the dump: it may lack what comes during it
		c.Header(recovery.RecoveringHeader, "true")
	}
	format, dump := answerFormat(c.Request), r.svc.Dump
	if format == bodyscan.Msgpack {
		dump = r.svc.DumpMsgpack
	}
	if c.Request.Method == http.MethodHead {
		c.Writer.Header()["Content-Type"] = contentTypes[format]
		c.Status(http.StatusOK)
		return
	}
	r.api.stream(c, r.api.dumps, format, func(ctx context.Context, w io.Writer) error {
		return dump(ctx, w, contract.Version(r.api.dialect))
	})
}

// stream answers one of the readers with the output of write, chunk by chunk. Only an
// error before the first chunk can still become an error answer.
func (a api) stream(c *gin.Context, readers *Readers, format bodyscan.Format, write func(context.Context, io.Writer) error) {
	if err := readers.enter(); err != nil {
		a.fail(c, nil, err)
		return
	}
	defer readers.leave()
	c.Writer.Header()["Content-Type"] = contentTypes[format]
	w := chunkWriter{c.Writer, http.NewResponseController(c.Writer)}
	err := write(c.Request.Context(), w)
	switch {
	case err == nil:
		_ = w.conn.SetWriteDeadline(time.Time{}) // the connection lives on
	case !c.Writer.Written():
		a.fail(c, nil, err)
	default:
		withRequest(a.log.Warn(), c).Err(err).Msg("answer broken off")
		panic(http.ErrAbortHandler) // the client must see that the end is missing
	}
}
