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

// grace is how long requests under way have to finish after the signal to stop. The
// whole stop may take five seconds; the sockets need a part of them.
const grace = 4 * time.Second

// The contracts that a listener can serve.
const (
	selectionContract = "selection"
	slotsContract     = "slots"
	conductorContract = "conductor"
	adminContract     = "admin" // the operators' routes
	debugContract     = "debug" // profiles of the process
)

// listener is an HTTP listener with the contract that it serves.
type listener struct {
	contract string
	address  string // host:port as configured
	flag     string // that sets the port
	socket   net.Listener
	server   *http.Server // set by serve
}

// listeners are the HTTP listeners of a process; the base URL is that of the first.
type listeners []*listener

// configured lists the listeners of a configuration, not bound yet.
func configured(conf config.Config) listeners {
	s := conf.Server
	slotsFlag := "--slots-port"
	if conf.SlotsOnly {
		slotsFlag = "--port"
	}
	var all listeners
	for _, l := range []struct {
		wanted bool
		listener
	}{
		{!conf.SlotsOnly, listener{contract: selectionContract, address: s.Address(), flag: "--port"}},
		{conf.SlotsOnly || s.SlotsPort != 0, listener{contract: slotsContract, address: s.SlotsAddress(), flag: slotsFlag}},
		{s.ConductorPort != 0, listener{contract: conductorContract, address: s.ConductorAddress(), flag: "--conductor-port"}},
		{s.AdminListen != "", listener{contract: adminContract, address: s.AdminListen, flag: "--admin-listen"}},
		{s.DebugListen != "", listener{contract: debugContract, address: s.DebugListen, flag: "--debug-listen"}},
	} {
		if l.wanted {
			all = append(all, &l.listener)
		}
	}
	return all
}

// listen binds the configured listeners. If one address is taken, none stays bound.
func listen(ctx context.Context, conf config.Config) (listeners, error) {
	all := configured(conf)
	for _, l := range all {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.address)
		if err != nil {
			all.close()
			return nil, fmt.Errorf("listen on %s (%s): %w", l.address, l.flag, err)
		}
		l.socket = ln
	}
	return all, nil
}

func (all listeners) close() {
	for _, l := range all {
		if l.socket != nil {
			_ = l.socket.Close() // not served yet
		}
	}
}

// baseURL is the URL at which other replicas reach the first listener under the name
// host, unless ports are mapped.
func (all listeners) baseURL(host string) string {
	_, port, _ := net.SplitHostPort(all[0].socket.Addr().String()) // an address of net.Listen is well formed
	return "http://" + net.JoinHostPort(host, port)
}

// serve starts a server on each listener in g; they run until shutdown.
func (all listeners) serve(g *errgroup.Group, handler func(*listener) http.Handler, log zerolog.Logger) {
	for _, l := range all {
		l.server = httpapi.NewServer(handler(l), log)
		log.Info().Str("version", version()).Stringer("address", l.socket.Addr()).Str("contract", l.contract).
			Int("pid", os.Getpid()).Msg("listening")
		g.Go(func() error {
			if err := l.server.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve on %s: %w", l.address, err)
			}
			return nil
		})
	}
}

// shutdown lets requests under way finish, but not for longer than grace.
func (all listeners) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	faults := make([]error, len(all))
	var wg sync.WaitGroup
	for i, l := range all {
		wg.Go(func() {
			if err := l.server.Shutdown(ctx); err != nil {
				faults[i] = l.server.Close()
			}
		})
	}
	wg.Wait()
	return errors.Join(faults...)
}
