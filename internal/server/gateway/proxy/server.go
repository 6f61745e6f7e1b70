package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/transport/http1"
)

// Config has the settings of the front.
type Config struct {
	// Guard authenticates the clients, which need the role Call; nil: anyone may send requests.
	Guard *access.Guard
	// Hosts are the names under which a browser may address the listener where there is no Guard; nil: any.
	Hosts *access.Hosts
	// Token returns the token that engines get in place of the clients'; nil: none.
	Token func() string
	// Dial and TLS are those of connections to engines, see http1.Options.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	TLS  func(host string) *tls.Config

	// Retries is how many other engines may be tried for a request that an engine has not begun to serve.
	Retries        int
	ConnectTimeout time.Duration
	// FirstByteTimeout is how long an engine may take to begin its answer; 0: as long as it wants.
	FirstByteTimeout time.Duration
	// WriteTimeout is how long a client may read nothing of its answer; 0: a minute.
	WriteTimeout time.Duration
	// Keepalive is after how much silence of an engine that sends events its client gets a comment; 0: never.
	Keepalive time.Duration
	// Trust has the networks whose X-Forwarded headers are kept.
	Trust []netip.Prefix

	AccessLog bool
	Metrics   *counts.Proxied
	Log       zerolog.Logger
}

// Server is the front.
type Server struct {
	// HTTP is the server of the clients. Serve runs it.
	HTTP *http.Server

	config   Config
	gateway  *gateway.Gateway
	engines  *http1.Client
	draining atomic.Bool
	ctx      context.Context // of all requests
	cut      context.CancelFunc
	requests sync.WaitGroup // under way
	clients  departures
	watching sync.WaitGroup // clients.run

	mu    sync.RWMutex // guards bases
	bases map[string]*base
}

// writeTimeout is Config.WriteTimeout by default, as nginx's send_timeout: a client whose network is away for a while
// keeps its answer.
const writeTimeout = time.Minute

// Limits of clients' connections. There is no limit on the time to answer.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 3 * time.Minute // longer than clients and load balancers usually keep a connection
	maxHeaderBytes = 64 << 10
)

// New returns the front of a gateway.
func New(config Config, g *gateway.Gateway) *Server {
	config.WriteTimeout = cmp.Or(config.WriteTimeout, writeTimeout)
	s := &Server{config: config, gateway: g, bases: make(map[string]*base), clients: departures{open: make(map[*exchange]context.CancelFunc)}}
	s.engines = http1.New(http1.Options{Dial: config.Dial, TLS: config.TLS, ConnectTimeout: config.ConnectTimeout})
	config.Metrics.Connections = s.engines.Connections
	s.ctx, s.cut = context.WithCancel(context.Background())
	s.HTTP = &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: stdlog.New(serverLog{config.Log}, "", 0), BaseContext: func(net.Listener) context.Context { return s.ctx },
		DisableGeneralOptionsHandler: true,
	}
	return s
}

// serverLog logs the lines of net/http about faults of connections.
type serverLog struct{ log zerolog.Logger }

func (l serverLog) Write(line []byte) (int, error) {
	l.log.Debug().Str("detail", string(line)).Msg("http connection")
	return len(line), nil
}

// Serve serves clients on a listener until Stop.
func (s *Server) Serve(l net.Listener) error {
	if outer := s.HTTP.ConnContext; outer != nil {
		s.HTTP.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return withConn(outer(ctx, c), c) }
	} else {
		s.HTTP.ConnContext = withConn
	}
	s.watching.Go(func() { s.clients.run(s.ctx) })
	if err := s.HTTP.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the proxy on %s: %w", l.Addr(), err)
	}
	return nil
}

// Stop shuts the server down. It is not ready at once; after delay it accepts no new requests, and those under
// way, upgraded ones too, have timeout to end. When ctx ends, everything is cut at once.
func (s *Server) Stop(ctx context.Context, delay, timeout time.Duration) {
	s.draining.Store(true)
	select {
	case <-ctx.Done():
	case <-time.After(delay):
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s.HTTP.Shutdown(ctx) == nil { // it does not wait for upgraded connections, nor for requests of HTTP/2 whose connection has gone
		ended := make(chan struct{})
		go func() {
			s.requests.Wait()
			close(ended)
		}()
		select {
		case <-ctx.Done():
			s.cut()
			<-ended
		case <-ended:
		}
	}
	s.cut()
	_ = s.HTTP.Close()
	s.requests.Wait()
	s.watching.Wait()
	s.engines.Close()
}

// base is where the requests of an engine go.
type base struct {
	origin http1.Origin
	path   string // before those of requests; "": none
}

// maxBases bounds the remembered URLs of engines.
const maxBases = 1 << 14

// baseOf returns what a worker's URL, or host:port, stands for.
func (s *Server) baseOf(text string) *base {
	s.mu.RLock()
	b := s.bases[text]
	s.mu.RUnlock()
	if b != nil {
		return b
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		u = &url.URL{Scheme: "http", Host: text}
	}
	b = &base{origin: http1.OriginOf(u), path: u.EscapedPath()}
	for b.path != "" && b.path[len(b.path)-1] == '/' {
		b.path = b.path[:len(b.path)-1]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bases) >= maxBases {
		clear(s.bases)
	}
	s.bases[text] = b
	return b
}

// trusts reports whether the headers of a peer about its own clients are believed.
func (s *Server) trusts(peer netip.Addr) bool {
	return slices.ContainsFunc(s.config.Trust, func(n netip.Prefix) bool { return n.Contains(peer) })
}
