package gateway

import (
	"context"
	"net"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/engines/routes"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Config has the settings and dependencies of a gateway that hold for every front.
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
	// Sessions knows the headers by which clients name their sessions; nil: those of identity.New.
	Sessions *identity.Table
	// SessionMode says how firmly sessions stay together, and SessionGroups whether those do that one session
	// has started.
	SessionMode   selection.SessionMode
	SessionGroups bool
	// Conditional says which prompts the worker that decodes prefills itself although another one could; nil: none.
	Conditional *selection.Conditional
	// Paths are those that requests may name; nil: all.
	Paths *routes.Set
	// RetryAfter is the value of Retry-After in seconds, for requests that are refused for want
	// of room; 0: none.
	RetryAfter int

	MaxStreams  int // requests at a time; further ones are answered 503
	MaxBody     int // of a request's body, in bytes
	PickTimeout time.Duration
	Lease       time.Duration // of a reservation
	// ReserveFor is how long what is reserved for a later request waits for it; 0: nothing is reserved.
	ReserveFor time.Duration

	// Dial connects to engines that prefill, to see whether they can be reached; nil: as net.Dialer does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Length asks the engine at a URL for the context length of a model in tokens, where no worker of
	// the model states it; nil: nobody is asked.
	Length func(ctx context.Context, engine, model string) (tokens int, err error)

	Memory  *memory.Budget // nil: no limits
	Metrics *counts.Gateway
	Tracer  *tracing.Tracer // nil: requests are not traced
	Log     zerolog.Logger
}

// Service has the parts of the service that a gateway calls.
type Service struct {
	Selecting *selection.API
	Catalog   *catalog.Catalog
	// Ready reports whether requests may come: recovery at the start is over, the workers of the configuration are
	// registered, even if there are none, and their engines have been asked.
	Ready func() bool
	// Expected are scopes that sources of workers name, whether they have workers now or not.
	Expected []catalog.Scope
}

// Gateway places requests and follows them, whatever front they come through. It is safe for
// concurrent use.
type Gateway struct {
	config   Config
	ready    func() bool
	picker   *picker
	bookings *bookings
	reach    *reach
	// relayed counts the pieces of answers that are being passed on. At its limit new requests
	// are refused; answers under way are never cut.
	relayed *memory.Account
	places  *memory.Limiter // of MaxStreams requests
}

// readyEvery is how often Run checks whether the tokenizer can be tried.
const readyEvery = 200 * time.Millisecond

// New returns a gateway without a front.
func New(config Config, svc Service) *Gateway {
	if config.Sessions == nil {
		config.Sessions, _ = identity.New() // fails for further headers alone
	}
	g := &Gateway{config: config, ready: svc.Ready, relayed: config.Memory.Account(memory.Answers)}
	g.places = memory.NewAccount("places", int64(config.MaxStreams)).Limiter()
	g.bookings = newBookings(svc.Selecting, config.Lease, config.MaxStreams)
	models := &models{catalog: svc.Catalog, named: config.Models, expected: svc.Expected}
	g.picker = &picker{
		config: &g.config, api: svc.Selecting, models: models, ready: svc.Ready,
		endpoints: newEndpoints(config.Log), bookings: g.bookings, lengths: newLengths(models, config.Length, config.Log),
		serving: config.Memory.Account(memory.Serving), requests: config.Memory.Account(memory.Requests),
		log: config.Log,
	}
	g.bookings.endpoint = g.endpointOf
	g.reach = newReach(config.Dial, svc.Selecting, g.endpointOf, config.Log)
	g.picker.reach = g.reach
	return g
}

// Ready reports whether requests may come.
func (g *Gateway) Ready() bool { return g.ready() }

// Models lists the names that a caller's requests can have now, of models and of adapters, in order, and how
// many tokens each one's context may have, 0 where that is not known.
func (g *Gateway) Models(caller *access.Caller) (names []string, lengths []int) {
	names = g.picker.models.visible(caller)
	for _, name := range names {
		t, _ := g.picker.models.find(name, caller)
		lengths = append(lengths, g.picker.lengths.known(t))
	}
	return names, lengths
}

// Opened returns how many exchanges of a front are open.
func (g *Gateway) Opened(via counts.Via) int64 { return g.config.Metrics.Of(via).Open.Load() }

// Run renews leases, learns the lengths of models, looks whether engines that prefill can be reached, and probes the tokenizer once,
// until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.bookings.run(ctx) })
	group.Go(func() error { return g.picker.lengths.run(ctx) })
	group.Go(func() error { return g.reach.run(ctx) })
	group.Go(func() error {
		every := time.NewTicker(readyEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-every.C:
			}
			if g.ready() && g.picker.models.haveWorkers() {
				g.picker.probe(ctx)
				return nil
			}
		}
	})
	return group.Wait()
}
