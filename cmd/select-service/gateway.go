package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/extproc"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// endpointPicker is the gateway's listener and server. Without a port it does nothing.
type endpointPicker struct {
	socket  net.Listener // nil: no port
	probes  net.Listener // of the health service alone; nil: no port
	tls     *tls.Config  // nil: h2c
	exposed string       // what anyone on the network could do, see listener.openness

	conf    config.Gateway
	metrics *counts.Gateway
	tokens  *tokenizer.Client // nil: none is configured
	prompts *gateway.Prompts  // nil without tokens
	gateway *gateway.Gateway
	server  *extproc.Server
}

// listenPicker binds the gateway's port.
func listenPicker(ctx context.Context, conf config.Config, secure *certs.Side) (*endpointPicker, error) {
	p := &endpointPicker{}
	if conf.Gateway.Port == 0 {
		return p, nil
	}
	const http2 = "h2"
	switch {
	case secure != nil:
		p.tls = secure.ServerFor(http2)
	case conf.Gateway.SelfSigned:
		var err error
		if p.tls, err = certs.SelfSigned(http2); err != nil {
			return nil, fmt.Errorf("make a certificate for the gateway: %w", err)
		}
	}
	as := listener{secure: secure, tokens: conf.Access.TokensFile != "", clientCA: conf.TLS.ClientCA != ""}
	p.exposed = as.openness()
	address := net.JoinHostPort(conf.Server.Host(), strconv.Itoa(int(conf.Gateway.Port)))
	var err error
	if p.socket, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address); err != nil {
		return nil, fmt.Errorf("listen on %s (--gateway-port): %w", address, err)
	}
	if conf.Gateway.HealthPort == 0 {
		return p, nil
	}
	address = net.JoinHostPort(conf.Server.Host(), strconv.Itoa(int(conf.Gateway.HealthPort)))
	if p.probes, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address); err != nil {
		p.close()
		return nil, fmt.Errorf("listen on %s (--gateway-health-port): %w", address, err)
	}
	return p, nil
}

// close undoes listenPicker if the server was never started, and does nothing else.
func (p *endpointPicker) close() {
	if p.socket != nil {
		_ = p.socket.Close() // a served one is closed already
	}
	if p.probes != nil {
		_ = p.probes.Close()
	}
}

// build creates the endpoint picker over a service, and what reads prompts by its tokenizer, also without a
// port; listed reports whether the service's workers are known, and expected are the scopes that their sources name.
func (p *endpointPicker) build(conf config.Gateway, svc *node.Service, listed func() bool, expected []catalog.Scope, of tokenizer.Engines, guard *access.Guard, budget *memory.Budget, tracer *tracing.Tracer, log zerolog.Logger) {
	if t := conf.Tokenizer; conf.Tokenizes() {
		p.tokens = tokenizer.New(tokenizer.Options{
			URL: t.URL, Protocol: tokenizer.Protocol(t.Protocol), Timeout: t.Timeout, MaxResponse: int64(t.MaxAnswer),
			Engines: of, Memory: budget.Account(memory.Serving),
		})
	}
	settings := gateway.Config{
		Models: conf.Names(), MetadataPrefix: conf.MetadataPrefix, RetryAfter: int(conf.RetryAfter / time.Second),
		Tokenizer: p.tokens, LoadOnly: conf.Tokenizer.OnFailure == config.OnFailureLoadOnly, SaltTag: conf.SaltTag,
		MaxStreams: conf.MaxStreams, MaxBody: conf.MaxBody, PickTimeout: conf.PickTimeout, Lease: conf.Lease,
		Engines: of, Memory: budget, Tracer: tracer, Log: log,
	}
	if p.tokens != nil {
		p.prompts = gateway.NewPrompts(settings, svc.Catalog())
	}
	if p.socket == nil {
		return
	}
	p.conf, p.metrics = conf, counts.NewGateway()
	settings.Metrics = p.metrics
	p.gateway = gateway.New(settings, gateway.Service{
		Selecting: svc.API, Catalog: svc.Catalog(), Expected: expected, Ready: func() bool { return svc.Settled() && listed() },
	})
	p.server = extproc.New(extproc.Config{Guard: guard, TLS: p.tls, MaxStreams: conf.MaxStreams, Log: log}, p.gateway)
}

// serve starts the endpoint picker in g. Its background work ends with ctx; stop ends the server.
func (p *endpointPicker) serve(ctx context.Context, g *errgroup.Group, open *connections.Set, log zerolog.Logger) {
	if p.socket == nil {
		return
	}
	scheme := "h2c"
	if p.tls != nil {
		scheme = "h2"
	}
	if p.exposed != "" && !access.IsLoopback(p.socket.Addr()) {
		log.Warn().Stringer("address", p.socket.Addr()).Str("contract", "gateway").Msg(p.exposed)
	}
	log.Info().Str("version", version()).Stringer("address", p.socket.Addr()).Str("contract", "gateway").
		Str("scheme", scheme).Int("pid", os.Getpid()).Msg("listening")
	g.Go(func() error { return p.server.Serve(open.Counted(p.socket)) })
	if p.probes != nil {
		log.Info().Stringer("address", p.probes.Addr()).Str("contract", "gateway health").Msg("listening")
		g.Go(func() error { return p.server.ServeHealth(open.Counted(p.probes)) })
	}
	g.Go(func() error { return p.gateway.Run(ctx) })
	g.Go(func() error { return p.server.Run(ctx) })
}

// collectors returns the collectors of the gateway's metrics, none without a port.
func (p *endpointPicker) collectors() []prometheus.Collector {
	if p.metrics == nil {
		return nil
	}
	return []prometheus.Collector{p.metrics}
}

// stop ends the server after the requests under way. asked: a signal asked the process to stop,
// so gateways get time to notice.
func (p *endpointPicker) stop(ctx context.Context, asked bool) {
	if p.tokens != nil {
		defer p.tokens.Close()
	}
	if p.socket == nil {
		return
	}
	delay, timeout := p.conf.DrainDelay, p.conf.DrainTimeout
	if !asked {
		delay, timeout = 0, time.Second
	}
	p.server.Stop(ctx, delay, timeout)
}
