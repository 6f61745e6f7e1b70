package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/engines/routes"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/extproc"
	"github.com/select-service/select-service/internal/server/gateway/proxy"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// endpointPicker has the listeners and servers of requests to engines: the gateway's and the proxy's. Without a port it does nothing.
type endpointPicker struct {
	socket  net.Listener // nil: no port for Envoy
	probes  net.Listener // of the health service alone; nil: no port
	tls     *tls.Config  // nil: h2c
	exposed string       // what anyone on the network could do, see listener.openness

	clients    net.Listener  // of the proxy; nil: no port
	clientsTLS *tls.Config   // nil: HTTP without TLS
	hosts      *access.Hosts // of the proxy's listener; nil: any
	proxy      *proxy.Server
	proxied    *counts.Proxied

	conf    config.Gateway
	metrics *counts.Gateway   // nil without a port
	tokens  *tokenizer.Client // nil: none is configured
	prompts *gateway.Prompts  // nil without tokens
	gateway *gateway.Gateway
	server  *extproc.Server
}

// listenPicker binds the gateway's port.
func listenPicker(ctx context.Context, conf config.Config, secure *certs.Side) (*endpointPicker, error) {
	p := &endpointPicker{}
	if err := p.listenProxy(ctx, conf, secure); err != nil || conf.Gateway.Port == 0 {
		return p, err
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
	p.exposed = openness(conf, secure)
	address := net.JoinHostPort(conf.Server.Host(), strconv.Itoa(int(conf.Gateway.Port)))
	var err error
	if p.socket, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address); err != nil {
		p.close()
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

// openness returns what anyone on the network could do with a listener for requests to engines, "" for nothing.
func openness(conf config.Config, secure *certs.Side) string {
	as := listener{secure: secure, tokens: conf.Access.TokensFile != "", clientCA: conf.TLS.ClientCA != ""}
	return as.openness()
}

// listenProxy binds the proxy's port, if there is one.
func (p *endpointPicker) listenProxy(ctx context.Context, conf config.Config, secure *certs.Side) (err error) {
	if conf.Proxy.Port == 0 {
		return nil
	}
	address := net.JoinHostPort(conf.Server.Host(), strconv.Itoa(int(conf.Proxy.Port)))
	if p.clients, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address); err != nil {
		return fmt.Errorf("listen on %s (--proxy-port): %w", address, err)
	}
	if secure != nil {
		p.clientsTLS = secure.ServerFor("h2", "http/1.1")
	}
	p.exposed = openness(conf, secure)
	p.hosts = hostsOf(conf, &listener{socket: p.clients, secure: secure, tokens: conf.Access.TokensFile != ""})
	return nil
}

// close undoes listenPicker if the server was never started, and does nothing else.
func (p *endpointPicker) close() {
	if p.socket != nil {
		_ = p.socket.Close() // a served one is closed already
	}
	if p.probes != nil {
		_ = p.probes.Close()
	}
	if p.clients != nil {
		_ = p.clients.Close()
	}
}

// build creates the endpoint picker over a service, and what reads prompts by its tokenizer, also without a
// port; listed reports whether the service's workers are known, and expected are the scopes that their sources name.
func (p *endpointPicker) build(all config.Config, svc *node.Service, listed func() bool, expected []catalog.Scope, of engines.Access, length func(ctx context.Context, engine, model string) (int, error), guard *access.Guard, budget *memory.Budget, tracer *tracing.Tracer, log zerolog.Logger) {
	conf := all.Gateway
	if t := conf.Tokenizer; all.Tokenizes() {
		p.tokens = tokenizer.New(tokenizer.Options{
			URL: t.URL, Protocol: tokenizer.Protocol(t.Protocol), Timeout: t.Timeout, MaxResponse: int64(t.MaxAnswer),
			Engines: of, Memory: budget.Account(memory.Serving),
		})
	}
	settings := gateway.Config{
		Models: conf.Names(), MetadataPrefix: conf.MetadataPrefix, RetryAfter: int(all.Overload.GatewayRetryAfter() / time.Second),
		Tokenizer: p.tokens, LoadOnly: conf.Tokenizer.OnFailure == config.OnFailureLoadOnly, SaltTag: conf.SaltTag,
		MaxStreams: conf.MaxStreams, MaxBody: conf.MaxBody, PickTimeout: conf.PickTimeout, Lease: conf.Lease, ReserveFor: conf.ReserveFor,
		Dial: of.Dial, Length: length, Memory: budget, Tracer: tracer, Log: log,
	}
	if p.tokens != nil {
		p.prompts = gateway.NewPrompts(settings, svc.Catalog())
	}
	if !all.Fronts() {
		return
	}
	p.conf, p.metrics = conf, counts.NewGateway()
	settings.Paths, _ = routes.Parse(conf.Paths)                // config has checked them
	settings.Sessions, _ = identity.New(conf.SessionHeaders...) // as above
	settings.SessionMode = frontSessions(conf)
	settings.SessionGroups = all.FrontGroups()
	if conf.MaxUncachedTokens != nil || conf.MaxUncachedShare != nil {
		settings.Conditional = &selection.Conditional{MaxUncachedTokens: conf.MaxUncachedTokens, MaxUncachedShare: conf.MaxUncachedShare}
	}
	settings.Metrics = p.metrics
	p.gateway = gateway.New(settings, gateway.Service{
		Selecting: svc.UseCases.API, Catalog: svc.Catalog(), Expected: expected, Ready: func() bool { return svc.UseCases.Settled() && listed() },
	})
	if p.socket != nil {
		p.server = extproc.New(extproc.Config{Guard: guard, TLS: p.tls, MaxStreams: conf.MaxStreams, Log: log}, p.gateway)
	}
	if p.clients != nil {
		p.proxied = counts.NewProxied()
		c := all.Proxy
		p.proxy = proxy.New(proxy.Config{
			Guard: guard, Hosts: p.hosts, Token: of.Token, Dial: of.Dial, TLS: of.TLS,
			Retries: c.Retries, ConnectTimeout: c.ConnectTimeout, FirstByteTimeout: c.FirstByteTimeout,
			Keepalive: c.Keepalive, Trust: c.Trust, AccessLog: c.AccessLog, Metrics: p.proxied, Log: log,
		}, p.gateway)
	}
}

// serve starts the endpoint picker in g. Its background work ends with ctx; stop ends the server.
func (p *endpointPicker) serve(ctx context.Context, g *errgroup.Group, open *connections.Set, log zerolog.Logger) {
	if p.gateway == nil {
		return
	}
	g.Go(func() error { return p.gateway.Run(ctx) })
	if p.clients != nil {
		scheme := "http"
		if p.clientsTLS != nil {
			scheme = "https"
		}
		p.logListening(log, p.clients, "proxy", scheme)
		open.Configure(p.proxy.HTTP)
		p.proxy.HTTP.Protocols.SetHTTP2(true) // over TLS
		g.Go(func() error { return p.proxy.Serve(open.Listener(p.clients, p.clientsTLS)) })
	}
	if p.socket == nil {
		return
	}
	scheme := "h2c"
	if p.tls != nil {
		scheme = "h2"
	}
	p.logListening(log, p.socket, "gateway", scheme)
	g.Go(func() error { return p.server.Serve(open.Counted(p.socket)) })
	if p.probes != nil {
		log.Info().Stringer("address", p.probes.Addr()).Str("contract", "gateway health").Msg("listening")
		g.Go(func() error { return p.server.ServeHealth(open.Counted(p.probes)) })
	}
	g.Go(func() error { return p.server.Run(ctx) })
}

// logListening logs a listener, and what anyone could do with it.
func (p *endpointPicker) logListening(log zerolog.Logger, at net.Listener, contract, scheme string) {
	if p.exposed != "" && !access.IsLoopback(at.Addr()) {
		log.Warn().Stringer("address", at.Addr()).Str("contract", contract).Msg(p.exposed)
	}
	log.Info().Str("version", version()).Stringer("address", at.Addr()).Str("contract", contract).
		Str("scheme", scheme).Int("pid", os.Getpid()).Msg("listening")
}

// collectors returns the collectors of the gateway's metrics, none without a port.
func (p *endpointPicker) collectors() []prometheus.Collector {
	if p.metrics == nil {
		return nil
	}
	if p.proxied == nil {
		return []prometheus.Collector{p.metrics}
	}
	return []prometheus.Collector{p.metrics, p.proxied}
}

// stop ends the server after the requests under way. asked: a signal asked the process to stop,
// so gateways get time to notice.
func (p *endpointPicker) stop(ctx context.Context, asked bool) {
	if p.tokens != nil {
		defer p.tokens.Close()
	}
	delay, timeout := p.conf.DrainDelay, p.conf.DrainTimeout
	if !asked {
		delay, timeout = 0, time.Second
	}
	var ended sync.WaitGroup
	if p.server != nil {
		ended.Go(func() { p.server.Stop(ctx, delay, timeout) })
	}
	if p.proxy != nil {
		ended.Go(func() { p.proxy.Stop(ctx, delay, timeout) })
	}
	ended.Wait()
}
