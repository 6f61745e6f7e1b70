package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/select-service/select-service/internal/access"
	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/gateway/tokenizer"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
)

// Config is what the endpoint picker needs to know.
type Config struct {
	// Models are the names that requests may have, with what they stand for; nil: every model
	// of the tenant default under its own name.
	Models map[string]catalog.Scope
	// Tokenizer has the tokens of prompts; nil: load alone decides. With LoadOnly it also does
	// while the tokenizer fails.
	Tokenizer *tokenizer.Client
	LoadOnly  bool
	SaltTag   bool // salts reach engines with Dynamo's tag
	// MetadataPrefix is what the names of headers with metadata start with.
	MetadataPrefix string
	// RetryAfter is in how many seconds a client may come again that was refused for want of
	// room; 0 is not said.
	RetryAfter int

	MaxStreams  int // open at a time, then 503
	MaxBody     int // of a request, in bytes
	PickTimeout time.Duration
	Lease       time.Duration // of bookings

	// Guard finds the callers of the listener, who need the role Call; nil: everybody may.
	Guard *access.Guard
	// TLS of the listener; nil: HTTP/2 without (h2c).
	TLS     *tls.Config
	Memory  *budget.Budget // nil: no limits
	Metrics *telemetry.Gateway
	Log     zerolog.Logger
}

// Service is what of the service the picker uses.
type Service struct {
	Selecting *selecting.API
	Catalog   *catalog.Catalog
	// Ready reports whether requests may come: what is registered is known, be it nothing.
	Ready func() bool
}

// Server is the endpoint picker.
type Server struct {
	extproc.UnimplementedExternalProcessorServer

	config    Config
	ready     func() bool
	picker    *picker
	bookings  *bookings
	fallbacks fallbacks
	// relayed has the pieces of answers that pass by. Answers are not broken off for want of
	// room: new requests are refused.
	relayed  *budget.Account
	grpc     *grpc.Server
	health   *health.Server
	draining atomic.Bool
	silent   atomic.Bool // the warning was given
}

// healthNames are the services whose health is told: the one of the whole server, those of the
// endpoint picker protocol, and the one that Dynamo's picker has.
var healthNames = []string{"", "liveness", "readiness", extproc.ExternalProcessor_ServiceDesc.ServiceName, "inference-extension"}

// liveness is serving as long as the process is.
const liveness = "liveness"

const (
	// maxMessage bounds a message of a gateway in bytes: pieces of bodies from Envoy reach
	// 1 MiB.
	maxMessage = 4 << 20
	// healthEvery is how often readiness is looked at.
	healthEvery = 200 * time.Millisecond
	// stopEvery is how often a server that stops looks whether requests are under way.
	stopEvery = 10 * time.Millisecond
	// handshake is how long a connection may take to become one.
	handshake = 10 * time.Second
	// idlePing is after how long without a message a connection is asked whether it lives,
	// and pingTimeout for how long: what is gone must not stay booked.
	idlePing    = 30 * time.Second
	pingTimeout = 20 * time.Second
)

// New returns an endpoint picker that listens nowhere yet.
func New(config Config, svc Service) *Server {
	s := &Server{config: config, ready: svc.Ready, relayed: config.Memory.Account(budget.Answers), health: health.NewServer()}
	s.bookings = newBookings(svc.Selecting, config.Lease, config.MaxStreams, config.Metrics)
	config.Metrics.Bookings = func() int { return len(s.bookings.list()) }
	s.picker = &picker{
		config: &s.config, api: svc.Selecting, models: &models{catalog: svc.Catalog, named: config.Models},
		endpoints: newEndpoints(), bookings: s.bookings,
		serving: config.Memory.Account(budget.Serving), metrics: config.Metrics, log: config.Log,
	}
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.ConnectionTimeout(handshake),
		grpc.MaxConcurrentStreams(uint32(2 * config.MaxStreams)), // those beyond MaxStreams are told so
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if config.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config.TLS)))
	}
	s.grpc = grpc.NewServer(options...)
	extproc.RegisterExternalProcessorServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	s.tellHealth()
	return s
}

// Serve answers gateways on a listener until Stop.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve ext_proc on %s: %w", l.Addr(), err)
	}
	return nil
}

// Run does what has to be done beside the requests until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.bookings.run(ctx) })
	g.Go(func() error {
		every := time.NewTicker(healthEvery)
		defer every.Stop()
		for probed := false; ; {
			select {
			case <-ctx.Done():
				return nil
			case <-every.C:
				s.tellHealth()
			}
			if !probed && s.ready() && s.picker.models.haveWorkers() {
				probed = true
				g.Go(func() error {
					s.picker.probe(ctx)
					return nil
				})
			}
		}
	})
	return g.Wait()
}

// tellHealth makes the health service say what is so now.
func (s *Server) tellHealth() {
	now := healthpb.HealthCheckResponse_NOT_SERVING
	if !s.draining.Load() && s.ready() {
		now = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		if name == liveness {
			s.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
			continue
		}
		s.health.SetServingStatus(name, now)
	}
}

// Stop ends the server: its health is NOT_SERVING at once, after delay it takes no new requests,
// and those under way have timeout to end. If ctx ends, all is cut at once.
func (s *Server) Stop(ctx context.Context, delay, timeout time.Duration) {
	s.draining.Store(true)
	s.tellHealth()
	select {
	case <-ctx.Done():
	case <-time.After(delay):
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var ended sync.WaitGroup
	ended.Go(s.grpc.GracefulStop)
	// Others than requests are not waited for: those who watch the health do not leave.
	every := time.NewTicker(stopEvery)
	defer every.Stop()
	for quiet := 0; quiet < 2 && ctx.Err() == nil; quiet++ {
		if s.config.Metrics.Open.Load() > 0 {
			quiet = -1
		}
		select {
		case <-ctx.Done():
		case <-every.C:
		}
	}
	s.grpc.Stop()
	ended.Wait()
}

// Process implements the service of Envoy's filter: one call for each HTTP request.
func (s *Server) Process(stream extproc.ExternalProcessor_ProcessServer) (err error) {
	s.config.Metrics.Open.Add(1)
	defer s.config.Metrics.Open.Add(-1)
	caller, err := s.admit(stream.Context())
	if err != nil {
		return err
	}
	x := &exchange{server: s, stream: stream, caller: caller, peer: address(stream.Context())}
	x.body.small, x.body.large = s.config.Memory.Account(budget.Requests), s.config.Memory.Account(budget.Bodies)
	defer func() {
		if v := recover(); v != nil {
			s.config.Log.Error().Interface("panic", v).Bytes("stack", debug.Stack()).Msg("request through the gateway failed")
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return x.run()
}

// full reports whether there are more requests under way than may be.
func (s *Server) full() bool { return s.config.Metrics.Open.Load() > int64(s.config.MaxStreams) }

// warnSilent says once that a gateway does not send the bodies of responses.
func (s *Server) warnSilent() {
	if !s.silent.Swap(true) {
		s.config.Log.Warn().Msg("a gateway has response_body_mode NONE: bookings end with the headers of responses, and nothing is learned from their bodies")
	}
}

// admit returns the caller of a stream: the holder of its bearer token or of its client's
// certificate.
func (s *Server) admit(ctx context.Context) (*access.Caller, error) {
	if s.config.Guard == nil {
		return nil, nil
	}
	r := &http.Request{Header: http.Header{}}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if values := md.Get("authorization"); len(values) > 0 {
			r.Header["Authorization"] = values
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		r.RemoteAddr = p.Addr.String()
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			r.TLS = &info.State
		}
	}
	caller, err := s.config.Guard.Admit(r, access.Call, true)
	if err == nil {
		return caller, nil
	}
	code := codes.Unauthenticated
	if caller != nil {
		code = codes.PermissionDenied
	}
	return nil, status.Error(code, err.Error())
}

// address is that of the stream's gateway, without port.
func address(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
		return host
	}
	return p.Addr.String()
}
