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
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Config has the settings and dependencies of an endpoint picker.
type Config struct {
	// Models maps the model names of requests to scopes; nil: every model of the tenant default
	// under its own name.
	Models map[string]catalog.Scope
	// Tokenizer returns the tokens of prompts. Without it (nil), and with LoadOnly while it
	// fails, requests are placed by load alone.
	Tokenizer *tokenizer.Client
	LoadOnly  bool
	SaltTag   bool // engines get cache salts with Dynamo's tag, see openai.SaltTag
	// MetadataPrefix is the prefix of header names that carry metadata, in lower case.
	MetadataPrefix string
	// RetryAfter is the value of Retry-After in seconds, for requests that are refused for want
	// of room; 0: none.
	RetryAfter int

	MaxStreams  int // requests at a time; further ones are answered 503
	MaxBody     int // of a request's body, in bytes
	PickTimeout time.Duration
	Lease       time.Duration // of a reservation

	// Guard authenticates the gateways, which need the role Call; nil: anyone may connect.
	Guard *access.Guard
	// TLS is the listener's configuration; nil: HTTP/2 in plain text (h2c).
	TLS     *tls.Config
	Memory  *memory.Budget // nil: no limits
	Metrics *counts.Gateway
	Tracer  *tracing.Tracer // nil: requests are not traced
	Log     zerolog.Logger
}

// Service has the parts of the service that the picker calls.
type Service struct {
	Selecting *selection.API
	Catalog   *catalog.Catalog
	// Ready reports whether requests may come: recovery at the start is over and the workers of
	// the configuration are registered, even if there are none.
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
	// relayed counts the pieces of answers that are being passed on. At its limit new requests
	// are refused; answers under way are never cut.
	relayed      *memory.Account
	admitted     atomic.Int64 // requests under way that were not refused for MaxStreams
	grpc         *grpc.Server
	health       *health.Server
	probes       *grpc.Server // of the health service alone, in plain text
	draining     atomic.Bool
	warnedNoBody atomic.Bool // warnNoResponseBody has logged
}

// healthNames are the services whose health is reported: the whole server (""), those of the
// endpoint picker protocol, and the name that Dynamo's picker uses.
var healthNames = []string{"", "liveness", "readiness", extproc.ExternalProcessor_ServiceDesc.ServiceName, "inference-extension"}

// liveness is SERVING as long as the process runs.
const liveness = "liveness"

const (
	// maxMessage bounds a message from a gateway, in bytes. Envoy sends pieces of bodies of up
	// to 1 MiB.
	maxMessage = 4 << 20
	// streamWindow and connWindow are how many bytes a gateway may send before they are read: of a request,
	// and of all requests of a connection. Without them gRPC measures the connection, with a ping for
	// nearly every message: an eighth of the picker's CPU where answers stream.
	streamWindow, connWindow = 1 << 20, 16 << 20
	// minStreams is the least number of streams that a connection may have. A gateway learns of
	// the bound only after its first streams, and a stream beyond it fails instead of being refused
	// with an answer.
	minStreams = 1024
	// healthEvery is how often readiness is checked.
	healthEvery = 200 * time.Millisecond
	// stopEvery is how often Stop checks whether requests are under way.
	stopEvery = 10 * time.Millisecond
	// handshake bounds the time of a connection's handshakes (TLS and HTTP/2).
	handshake = 10 * time.Second
	// Bounds of probes: a message in bytes, the calls of a connection, and how long one without
	// calls stays open.
	maxProbe  = 4 << 10
	maxProbes = 16
	idleProbe = 2 * time.Minute
	// A connection without messages for idlePing is pinged, and closed without an answer within
	// pingTimeout: the requests of a gateway that has gone must not stay booked.
	idlePing    = 30 * time.Second
	pingTimeout = 20 * time.Second
)

// New returns an endpoint picker without a listener; see Serve.
func New(config Config, svc Service) *Server {
	s := &Server{config: config, ready: svc.Ready, relayed: config.Memory.Account(memory.Answers), health: health.NewServer()}
	s.bookings = newBookings(svc.Selecting, config.Lease, config.MaxStreams, config.Metrics)
	config.Metrics.Bookings = func() int { return len(s.bookings.list()) }
	models := &models{catalog: svc.Catalog, named: config.Models}
	s.picker = &picker{
		config: &s.config, api: svc.Selecting, models: models,
		endpoints: newEndpoints(config.Log), bookings: s.bookings, lengths: newLengths(models, config.Log),
		serving: config.Memory.Account(memory.Serving), metrics: config.Metrics, log: config.Log,
	}
	s.bookings.endpoint = s.endpointOf
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.ConnectionTimeout(handshake), grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.MaxConcurrentStreams(uint32(max(2*config.MaxStreams, minStreams))), // twice, so that requests beyond MaxStreams get an answer
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if config.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config.TLS)))
	}
	s.grpc = grpc.NewServer(options...)
	extproc.RegisterExternalProcessorServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	s.probes = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxProbe), grpc.ConnectionTimeout(handshake), grpc.MaxConcurrentStreams(maxProbes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing, Timeout: pingTimeout, MaxConnectionIdle: idleProbe}),
	)
	healthpb.RegisterHealthServer(s.probes, s.health)
	s.updateHealth()
	return s
}

// Serve serves gateways on a listener until Stop.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve ext_proc on %s: %w", l.Addr(), err)
	}
	return nil
}

// ServeHealth serves the health service alone, in plain text and for anyone, until Stop: probes of
// Kubernetes speak no TLS and have no token.
func (s *Server) ServeHealth(l net.Listener) error {
	if err := s.probes.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve health on %s: %w", l.Addr(), err)
	}
	return nil
}

// Run renews leases, learns the lengths of models, updates the health service and probes the
// tokenizer once, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.bookings.run(ctx) })
	g.Go(func() error { return s.picker.lengths.run(ctx) })
	g.Go(func() error {
		every := time.NewTicker(healthEvery)
		defer every.Stop()
		for probed := false; ; {
			select {
			case <-ctx.Done():
				return nil
			case <-every.C:
				s.updateHealth()
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

// updateHealth updates the health service.
func (s *Server) updateHealth() {
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

// Stop shuts the server down. Its health is NOT_SERVING at once; after delay it accepts no new
// requests, and those under way have timeout to end. When ctx ends, everything is cut at once.
func (s *Server) Stop(ctx context.Context, delay, timeout time.Duration) {
	s.draining.Store(true)
	s.updateHealth()
	select {
	case <-ctx.Done():
	case <-time.After(delay):
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var ended sync.WaitGroup
	ended.Go(s.grpc.GracefulStop)
	// Only requests are waited for: GracefulStop alone would wait for health watches, which
	// never end.
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
	s.probes.Stop()
	ended.Wait()
}

// Process implements Envoy's filter service: one call for each HTTP request.
func (s *Server) Process(stream extproc.ExternalProcessor_ProcessServer) (err error) {
	s.config.Metrics.Open.Add(1)
	defer s.config.Metrics.Open.Add(-1)
	caller, err := s.admit(stream.Context())
	if err != nil {
		return err
	}
	x := &exchange{server: s, stream: stream, caller: caller, peer: address(stream.Context()), admitted: s.enter()}
	x.body.small, x.body.large = s.config.Memory.Account(memory.Requests), s.config.Memory.Account(memory.Bodies)
	defer func() {
		if v := recover(); v != nil {
			s.config.Log.Error().Interface("panic", v).Bytes("stack", debug.Stack()).Msg("request through the gateway failed")
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return x.run()
}

// enter counts a request, and reports whether there is room for it: of requests that come at
// once, exactly MaxStreams are admitted.
func (s *Server) enter() bool {
	for {
		n := s.admitted.Load()
		if n >= int64(s.config.MaxStreams) {
			return false
		}
		if s.admitted.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// warnNoResponseBody warns, once, that a gateway does not send the bodies of responses.
func (s *Server) warnNoResponseBody() {
	if !s.warnedNoBody.Swap(true) {
		s.config.Log.Warn().Msg("a gateway has response_body_mode NONE: nothing is learned from answers, and without response_trailer_mode SEND bookings end with their headers")
	}
}

// admit authenticates the caller of a stream by its bearer token or its client certificate. The
// error is a gRPC status.
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

// address returns the address of the stream's gateway without port.
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
