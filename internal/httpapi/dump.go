package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/recovery"
)

// dumper writes the index as the JSON text of GET /dump, in the form of a
// contract and in large chunks.
type dumper interface {
	Dump(ctx context.Context, w io.Writer, form contract.Version) error
	// Recovering reports whether the index is still being filled from a peer's dump.
	Recovering() bool
}

// chunkStall is how long a client may leave a chunk of an answer unread.
const chunkStall = time.Minute

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
	if c.Request.Method == http.MethodHead {
		c.Writer.Header()["Content-Type"] = contentJSON
		c.Status(http.StatusOK)
		return
	}
	r.api.stream(c, func(ctx context.Context, w io.Writer) error {
		return r.svc.Dump(ctx, w, contract.Version(r.api.dialect))
	})
}

// stream answers with the output of write, chunk by chunk. Only an error before the
// first chunk can still become an error answer.
func (a api) stream(c *gin.Context, write func(context.Context, io.Writer) error) {
	c.Writer.Header()["Content-Type"] = contentJSON
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
