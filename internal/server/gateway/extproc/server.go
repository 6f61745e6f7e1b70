package extproc

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

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
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

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/telemetry/tracing"
)

// Config has the settings of the front.
type Config struct {
	// Guard authenticates the gateways, which need the role Call; nil: anyone may connect.
	Guard *access.Guard
	// TLS is the listener's configuration; nil: HTTP/2 in plain text (h2c).
	TLS *tls.Config
	// MaxStreams is how many requests the gateway takes at a time.
	MaxStreams int
	Log        zerolog.Logger
}

// Server is the endpoint picker.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	config       Config
	gateway      *gateway.Gateway
	grpc         *grpc.Server
	health       *health.Server
	probes       *grpc.Server // of the health service alone, in plain text
	draining     atomic.Bool
	warnedNoBody atomic.Bool // warnNoResponseBody has logged
	observed     observed
}

// healthNames are the services whose health is reported: the whole server (""), those of the
// endpoint picker protocol, and the name that Dynamo's picker uses.
var healthNames = []string{"", "liveness", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "inference-extension"}

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
func New(config Config, g *gateway.Gateway) *Server {
	s := &Server{config: config, gateway: g, health: health.NewServer()}
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
	extprocv3.RegisterExternalProcessorServer(s.grpc, s)
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
	if err := s.grpc.Serve(listener{l}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
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

// Run updates the health service until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	every := time.NewTicker(healthEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
			s.updateHealth()
		}
	}
}

// updateHealth updates the health service.
func (s *Server) updateHealth() {
	now := healthpb.HealthCheckResponse_NOT_SERVING
	if !s.draining.Load() && s.gateway.Ready() {
		now = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		if name == liveness {
			s.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
			continue
		}
		s.health.SetServingStatus(name, now)
	}
	if now == healthpb.HealthCheckResponse_SERVING && s.draining.Load() {
		s.updateHealth() // Stop has begun meanwhile, and has the last word
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
		if s.gateway.Opened(counts.ExtProc) > 0 {
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
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) (err error) {
	caller, err := s.admit(stream.Context())
	if err != nil {
		return err
	}
	c := &call{Exchange: s.gateway.Open(counts.ExtProc, caller), server: s, stream: stream, peer: hostOf(stream.Context()), ability: abilityOf(stream.Context())}
	defer c.end()
	defer func() {
		if v := recover(); v != nil {
			s.config.Log.Error().Interface("panic", v).Bytes("stack", debug.Stack()).Msg("request through the gateway failed")
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return c.run()
}

// warnNoResponseBody warns, once, that a gateway does not send the bodies of responses.
func (s *Server) warnNoResponseBody() {
	if !s.warnedNoBody.Swap(true) {
		s.config.Log.Warn().Msg("a gateway has response_body_mode NONE: nothing is learned from answers unless a second filter shows them, and without response_trailer_mode SEND bookings end with their headers")
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

// parentOf returns the trace of a call of this service; zero: it has none.
func parentOf(call context.Context) (parent tracing.Context) {
	if values := metadata.ValueFromIncomingContext(call, tracing.ParentHeader); len(values) == 1 {
		parent.Parent = values[0]
		if states := metadata.ValueFromIncomingContext(call, tracing.StateHeader); len(states) > 0 {
			parent.State = states[0]
		}
	}
	return parent
}

// hostOf returns the address of the stream's gateway without port, for logs.
func hostOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
		return host
	}
	return p.Addr.String()
}
