package httpapi

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/recovery"
)

// dumper writes the index for GET /dump, as JSON in the form of a contract, in large chunks.
type dumper interface {
	Dump(ctx context.Context, w io.Writer, form contract.Version) error
	// DumpMsgpack writes the same in msgpack.
	DumpMsgpack(ctx context.Context, w io.Writer, form contract.Version) error
	// Recovering reports whether the index is still being filled from a peer's dump.
	Recovering() bool
}

// chunkStall is how long a client may leave a chunk of an answer unread. Meanwhile it
// counts as a reader.
const chunkStall = 15 * time.Second

// Readers bounds the concurrent readers of a long answer, and accounts for their memory.
type Readers struct {
	limit   string // one of contract.Limits
	most    int64
	account *memory.Account
	reading atomic.Int64
}

// readerMemory is the memory of a reader in bytes: the buffers of the writer, of the
// connection and of the socket.
const readerMemory = 256 << 10

// How many readers are answered at a time. Replicas read the dump at their start only. They read the
// reservations of all the others whenever they have missed some, so that a larger mesh has more readers.
const (
	MaxDumpReaders     = 8
	MaxSnapshotReaders = 64
)

// NewReaders returns a bound of most readers. limit is its name, one of contract.Limits.
func NewReaders(limit string, most int, account *memory.Account) *Readers {
	return &Readers{limit: limit, most: int64(most), account: account}
}

// enter admits a reader, who must call leave, or returns an error if there are too many.
func (r *Readers) enter() error {
	if r == nil {
		return nil
	}
	if r.reading.Add(1) > r.most {
		r.reading.Add(-1)
		return contract.LimitErrorf(contract.Exhausted, r.limit, "%d readers are answered at a time", r.most)
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

// chunkWriter sets a deadline for each chunk: a dump may take long, but must not wait for a
// client that has stopped reading.
type chunkWriter struct {
	http.ResponseWriter
	conn *http.ResponseController
}

func (w chunkWriter) Write(chunk []byte) (int, error) {
	_ = w.conn.SetWriteDeadline(time.Now().Add(chunkStall)) // fails only for writers of tests
	return w.ResponseWriter.Write(chunk)
}

type dumpRoutes struct {
	svc dumper
	api api
}

// dump streams the index, which may have millions of blocks.
func (r dumpRoutes) dump(c *gin.Context) {
	if r.svc.Recovering() { // checked before the dump, which may lack blocks that come during it
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

// stream admits a reader and writes the output of write, chunk by chunk. Only an error before
// the first chunk becomes an error answer.
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
		_ = w.conn.SetWriteDeadline(time.Time{}) // the connection is used again
	case !c.Writer.Written():
		a.fail(c, nil, err)
	default:
		withRequest(a.log.Warn(), c).Err(err).Msg("answer broken off")
		panic(http.ErrAbortHandler) // break the connection: the client must notice that the answer is incomplete
	}
}
