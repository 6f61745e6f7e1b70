package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// dumper writes the index as the JSON text of GET /dump, in large chunks.
type dumper interface {
	Dump(ctx context.Context, w io.Writer) error
}

// dumpStall is how long a client may leave a chunk of the dump unread.
const dumpStall = time.Minute

// chunkWriter gives every chunk a deadline of its own: the dump as a whole may
// take long, but must not wait for a client that has stopped reading.
type chunkWriter struct {
	http.ResponseWriter
	conn *http.ResponseController
}

func (w chunkWriter) Write(chunk []byte) (int, error) {
	_ = w.conn.SetWriteDeadline(time.Now().Add(dumpStall)) // only tests have writers without deadlines
	return w.ResponseWriter.Write(chunk)
}

type dumpRoutes struct {
	svc dumper
	api api
}

// dump streams: an index has millions of blocks. Only a fault before the first
// chunk still gets an error answer.
func (r dumpRoutes) dump(c *gin.Context) {
	c.Writer.Header()["Content-Type"] = contentJSON
	if c.Request.Method == http.MethodHead {
		c.Status(http.StatusOK)
		return
	}
	w := chunkWriter{c.Writer, http.NewResponseController(c.Writer)}
	err := r.svc.Dump(c.Request.Context(), w)
	switch {
	case err == nil:
		_ = w.conn.SetWriteDeadline(time.Time{}) // the connection lives on
	case !c.Writer.Written():
		r.api.fail(c, nil, err)
	default:
		r.api.log.Warn().Err(err).Msg("dump broken off")
		panic(http.ErrAbortHandler) // the client must see that the end is missing
	}
}
