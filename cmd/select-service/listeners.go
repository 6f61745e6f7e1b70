package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/httpapi"
)

// grace is how long requests under way have to finish after the signal to stop.
// The whole stop may take five seconds; the sockets need some of them.
const grace = 4 * time.Second

// The contracts that a listener can serve.
const (
	selectionContract = "selection"
	slotsContract     = "slots"
	conductorContract = "conductor"
)

// face is one HTTP listener and what it serves.
type face struct {
	contract string
	address  string // host:port as configured
	flag     string // that says the port
	listener net.Listener
	server   *http.Server // set by serve
}

// faces are the HTTP listeners of a process, its own base URL's first.
type faces []*face

// listen binds what the configuration asks for. If one address is taken, none
// stays bound.
func listen(ctx context.Context, conf config.Config) (faces, error) {
	var all faces
	if !conf.SlotsOnly {
		all = append(all, &face{contract: selectionContract, address: conf.Server.Address(), flag: "--port"})
	}
	switch {
	case conf.SlotsOnly: // its --port is that of the slots
		all = append(all, &face{contract: slotsContract, address: conf.Server.SlotsAddress(), flag: "--port"})
	case conf.Server.SlotsPort != 0:
		all = append(all, &face{contract: slotsContract, address: conf.Server.SlotsAddress(), flag: "--slots-port"})
	}
	if conf.Server.ConductorPort != 0 {
		all = append(all, &face{contract: conductorContract, address: conf.Server.ConductorAddress(), flag: "--conductor-port"})
	}
	for _, f := range all {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.address)
		if err != nil {
			all.close()
			return nil, fmt.Errorf("listen on %s (%s): %w", f.address, f.flag, err)
		}
		f.listener = ln
	}
	return all, nil
}

func (all faces) close() {
	for _, f := range all {
		if f.listener != nil {
			_ = f.listener.Close() // nobody has it yet
		}
	}
}

// baseURL is where other replicas reach the first listener if its address is
// the one that they see.
func (all faces) baseURL(host string) string {
	_, port, _ := net.SplitHostPort(all[0].listener.Addr().String()) // an address of net.Listen is well formed
	return "http://" + net.JoinHostPort(host, port)
}

// serve makes the servers and hands them to g; they run until shutdown.
func (all faces) serve(g *errgroup.Group, handler func(contract string) http.Handler, log zerolog.Logger) {
	for _, f := range all {
		f.server = httpapi.NewServer(handler(f.contract), log)
		log.Info().Str("version", version()).Stringer("address", f.listener.Addr()).Str("contract", f.contract).
			Int("pid", os.Getpid()).Msg("listening")
		g.Go(func() error {
			if err := f.server.Serve(f.listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve on %s: %w", f.address, err)
			}
			return nil
		})
	}
}

// shutdown lets requests under way finish, but not for longer than grace.
func (all faces) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	faults := make([]error, len(all))
	var wg sync.WaitGroup
	for i, f := range all {
		wg.Go(func() {
			if err := f.server.Shutdown(ctx); err != nil {
				faults[i] = f.server.Close()
			}
		})
	}
	wg.Wait()
	return errors.Join(faults...)
}
