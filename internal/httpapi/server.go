package httpapi

import (
	stdlog "log"
	"net/http"
	"time"

	"github.com/rs/zerolog"
)

// Limits of a connection. There is no limit on the time to answer: a selection
// stays open for as long as it waits in the queue.
const (
	headerTimeout = 10 * time.Second
	// idleTimeout is above what clients and load balancers usually keep a
	// connection for, so that they close it and not we.
	idleTimeout    = 3 * time.Minute
	maxHeaderBytes = 64 << 10
)

// NewServer returns a server for handler, ready for Serve on a listener of the
// caller's.
func NewServer(handler http.Handler, log zerolog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          stdlog.New(serverLog{log}, "", 0),

		DisableGeneralOptionsHandler: true, // OPTIONS * gets our 404
	}
}

// serverLog takes the lines that net/http logs: faults of connections.
type serverLog struct{ log zerolog.Logger }

func (l serverLog) Write(line []byte) (int, error) {
	l.log.Debug().Str("detail", string(line)).Msg("http connection")
	return len(line), nil
}
