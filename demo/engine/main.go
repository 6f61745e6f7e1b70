// Command sim-engine simulates inference engines. Each has a block cache, a prefill and a
// decode rate, publishes its KV events as vLLM does, and answers requests, including those of
// the OpenAI API, after the time that its model takes. See docs/start/demo.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/select-service/select-service/demo/sim/openai"
	"github.com/select-service/select-service/internal/simulation/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sim-engine:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	conf := defaults()
	flags := conf.flags()
	flags.SetOutput(stdout)
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	if err := conf.validate(); err != nil {
		return err
	}
	return serve(ctx, conf, stdout)
}

type config struct {
	engines  int
	ranks    int // ranks of each engine
	model    string
	adapters []string
	render   bool
	listen   string
	port     int
	// eventsPort is the port of the events of the first rank of the first engine.
	eventsPort int
	topic      string
	hashSeed   uint64
	speedup    float64
	engine     engine.Config // except for the fields below
	// One value for all engines, or one for each engine.
	cacheBlocks []int
	speeds      []float64
	roles       []string
	domains     []string
	// Of the links within a transfer domain, and between two.
	setups, perToken []time.Duration
}

// defaults sizes an engine like an 8B model on one 80 GB accelerator: about 34 GB for 262,144
// tokens of KV cache, 12,000 prompt tokens per second, and 50 output tokens per second for
// each of its requests. The KV cache of a token, 131 kB, passes a link of 200 Gb/s in 7 µs at three quarters
// of its rate, and one of 25 Gb/s in 52 µs at four fifths.
func defaults() config {
	return config{
		engines: 1,
		ranks:   1,
		model:   "simulated",
		listen:  "127.0.0.1",
		speedup: 1,
		engine:  engine.Config{BlockSize: 16, PrefillRate: 12000, DecodeRate: 50},

		cacheBlocks: []int{16384},
		speeds:      []float64{1},
		roles:       []string{""},
		domains:     []string{""},
		setups:      []time.Duration{5 * time.Millisecond, 20 * time.Millisecond},
		perToken:    []time.Duration{7 * time.Microsecond, 52 * time.Microsecond},
	}
}

func (c *config) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("sim-engine", pflag.ContinueOnError)
	f.SortFlags = false
	f.IntVar(&c.engines, "engines", c.engines, "engines in this process")
	f.IntVar(&c.ranks, "data-parallel-size", c.ranks, "data-parallel ranks of each engine, behind one HTTP port")
	f.StringVar(&c.model, "model", c.model, "the model's name in the OpenAI API")
	f.StringSliceVar(&c.adapters, "lora", c.adapters, "names of LoRA adapters (a list)")
	f.BoolVar(&c.render, "render", c.render, "serve the routes that render a request to tokens, too")
	f.StringVar(&c.listen, "listen", c.listen, "IP address of the HTTP ports and the event sockets, as others reach it")
	f.IntVar(&c.port, "port", c.port, "HTTP port of the first engine, the next ones follow; 0 takes free ports")
	f.IntVar(&c.eventsPort, "events-port", c.eventsPort, "port of the first rank's KV events, the next one is that of replays, and so on for each rank; 0 takes free ports at each start")
	f.StringVar(&c.topic, "topic", c.topic, "topic frame of the KV events")
	f.Uint64Var(&c.hashSeed, "hash-seed", c.hashSeed, "seed of the block names, like PYTHONHASHSEED; 0 draws one at each start")
	f.Float64Var(&c.speedup, "speedup", c.speedup, "model seconds per second, until a player sets its own")
	f.IntVar(&c.engine.BlockSize, "block-size", c.engine.BlockSize, "tokens per KV cache block")
	f.IntSliceVar(&c.cacheBlocks, "cache-blocks", c.cacheBlocks, "blocks of the KV cache, of all engines or of each (a list)")
	f.Float64SliceVar(&c.speeds, "speed", c.speeds, "factor of all rates, of all engines or of each (a list)")
	f.Float64Var(&c.engine.PrefillRate, "prefill-rate", c.engine.PrefillRate, "prompt tokens computed per model second")
	f.Float64Var(&c.engine.DecodeRate, "decode-rate", c.engine.DecodeRate, "output tokens per model second of each request")
	f.BoolVar(&c.engine.EachToken, "each-token", c.engine.EachToken, "stream answers token by token, as vLLM does, not block by block")
	f.BoolVar(&c.engine.Chunked, "chunked", c.engine.Chunked, "chunked prefill: compute in steps of prompt chunks and output tokens, which slow each other; the two rates do not apply")
	f.StringSliceVar(&c.roles, "role", c.roles, "of all engines or of each (a list): prefill computes prompts only; decode has a sidecar that has the engine in x-prefiller-host-port compute the prompt; empty does all")
	f.StringSliceVar(&c.domains, "transfer-domain", c.domains, "transfer domain of KV caches, of all engines or of each (a list)")
	f.DurationSliceVar(&c.setups, "transfer-setup", c.setups, "time before a KV cache comes from an engine of the same domain, and of another one")
	f.DurationSliceVar(&c.perToken, "transfer-per-token", c.perToken, "time for each token of a KV cache that comes from an engine of the same domain, and of another one")
	return f
}

func (c *config) validate() error {
	var errs []error
	if c.engines < 1 {
		errs = append(errs, fmt.Errorf("engines: %d is below 1", c.engines))
	}
	if c.ranks < 1 {
		errs = append(errs, fmt.Errorf("data-parallel-size: %d is below 1", c.ranks))
	}
	if c.model == "" {
		errs = append(errs, errors.New("model: a name is needed"))
	}
	if ip := net.ParseIP(c.listen); ip == nil || ip.IsUnspecified() {
		errs = append(errs, fmt.Errorf("listen: %q is not an address that others can connect to", c.listen))
	}
	if c.port < 0 || c.port > 65535 || (c.port > 0 && c.port+c.engines-1 > 65535) {
		errs = append(errs, fmt.Errorf("port: %d with %d engines is outside 0..65535", c.port, c.engines))
	}
	if c.eventsPort < 0 || c.eventsPort > 0 && c.eventsPort+2*c.engines*c.ranks-1 > 65535 {
		errs = append(errs, fmt.Errorf("events-port: %d with %d ranks is outside 0..65535", c.eventsPort, c.engines*c.ranks))
	}
	if !(c.speedup > 0) {
		errs = append(errs, fmt.Errorf("speedup: %g is not above 0", c.speedup))
	}
	if n := len(c.cacheBlocks); n != 1 && n != c.engines {
		errs = append(errs, fmt.Errorf("cache-blocks: %d values for %d engines", n, c.engines))
	}
	if n := len(c.speeds); n != 1 && n != c.engines {
		errs = append(errs, fmt.Errorf("speed: %d values for %d engines", n, c.engines))
	}
	if n := len(c.roles); n != 1 && n != c.engines {
		errs = append(errs, fmt.Errorf("role: %d values for %d engines", n, c.engines))
	}
	for _, role := range c.roles {
		if role != "" && role != openai.RolePrefill && role != openai.RoleDecode {
			errs = append(errs, fmt.Errorf("role: %q is neither prefill nor decode", role))
		}
	}
	if n := len(c.domains); n != 1 && n != c.engines {
		errs = append(errs, fmt.Errorf("transfer-domain: %d values for %d engines", n, c.engines))
	}
	for flag, times := range map[string][]time.Duration{"transfer-setup": c.setups, "transfer-per-token": c.perToken} {
		if len(times) != 2 || min(times[0], times[1]) < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is not two times, within a domain and between two", flag, times))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for i := range c.engines {
		if c.speeds[i%len(c.speeds)] == 0 {
			errs = append(errs, errors.New("speed: 0 is not above 0"))
		}
		if err := c.of(i).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("engine %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}

// of returns the configuration of engine i, counted from 0.
func (c *config) of(i int) engine.Config {
	e := c.engine
	e.CacheBlocks = c.cacheBlocks[i%len(c.cacheBlocks)]
	e.Speed = c.speeds[i%len(c.speeds)]
	return e
}

// pairing returns how engine i, counted from 0, passes on KV caches.
func (c *config) pairing(i int) openai.Pairing {
	return openai.Pairing{
		Role: c.roles[i%len(c.roles)], Domain: c.domains[i%len(c.domains)],
		Within:  engine.Link{Setup: c.setups[0], PerToken: c.perToken[0]},
		Between: engine.Link{Setup: c.setups[1], PerToken: c.perToken[1]},
	}
}
