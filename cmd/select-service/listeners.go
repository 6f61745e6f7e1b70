package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/internal/server/httpapi"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/pkg/memory"
)

// grace is how long requests under way have to finish after the signal to stop. The whole stop
// may take five seconds, of which the sockets need a part.
const grace = 4 * time.Second

// freshGrace is how long a connection without a request then has to send one.
const freshGrace = 500 * time.Millisecond

// Names of the contracts that a listener can serve.
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
	address  string // host:port as configured, or the path of a unix socket
	flag     string // the flag that sets the port or the path
	socket   net.Listener
	secure   *certs.Side  // nil: plain HTTP
	tokens   bool         // callers need a token
	anyHost  bool         // --allowed-hosts does not say how callers may name it
	clientCA bool         // callers need a certificate
	server   *http.Server // set by serve
}

// listeners are the HTTP listeners of a process. The base URL is that of the first one that has
// a port.
type listeners []*listener

// configured returns the listeners of a configuration, not bound yet.
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
		{!conf.SlotsOnly && s.Host() != "", listener{contract: selectionContract, address: s.Address(), flag: "--port"}},
		{s.Host() != "" && (conf.SlotsOnly || s.SlotsPort != 0), listener{contract: slotsContract, address: s.SlotsAddress(), flag: slotsFlag}},
		{s.ConductorPort != 0, listener{contract: conductorContract, address: s.ConductorAddress(), flag: "--conductor-port"}},
		{s.AdminListen != "", listener{contract: adminContract, address: s.AdminListen, flag: "--admin-listen"}},
		{s.DebugListen != "", listener{contract: debugContract, address: s.DebugListen, flag: "--debug-listen"}},
	} {
		if l.wanted {
			all = append(all, &l.listener)
		}
	}
	main := selectionContract
	if conf.SlotsOnly {
		main = slotsContract
	}
	for _, path := range s.Sockets() {
		all = append(all, &listener{contract: main, address: path, flag: socketFlag})
	}
	return all
}

// listen binds the configured listeners. If one address is taken, none stays bound.
func listen(ctx context.Context, conf config.Config, secure *certs.Side) (listeners, error) {
	all := configured(conf)
	for _, l := range all {
		l.tokens = conf.Access.TokensFile != ""
		l.anyHost = len(conf.Access.AllowedHosts) == 0
		var ln net.Listener
		var err error
		if l.onSocket() {
			ln, err = listenSocket(ctx, l.address)
		} else {
			l.secure, l.clientCA = secure, conf.TLS.ClientCA != ""
			ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", l.address)
		}
		if err != nil {
			all.close()
			return nil, fmt.Errorf("listen on %s (%s): %w", l.address, l.flag, err)
		}
		l.socket = ln
	}
	return all, nil
}

// close unbinds the listeners that were never served, and does nothing else.
func (li listeners) close() {
	for _, l := range li {
		if l.socket != nil {
			_ = l.socket.Close() // served ones are closed already
		}
	}
}

func (l *listener) scheme() string {
	if l.secure != nil {
		return "https"
	}
	return "http"
}

// baseURL returns the URL under which other replicas reach the first listener at host, unless
// ports are mapped; empty if there are only unix sockets.
func (li listeners) baseURL(host string) string {
	if host == "" {
		return ""
	}
	_, port, _ := net.SplitHostPort(li[0].socket.Addr().String()) // an address of net.Listen is well formed
	return li[0].scheme() + "://" + net.JoinHostPort(host, port)
}

// descriptorReserve divides the limit of open files: connections leave a quarter of it to event
// streams, replicas and files.
const descriptorReserve = 4

// newConnections returns the set that bounds the connections of all listeners, also by the
// limit of open files.
func newConnections(conf config.Limits, budget *memory.Budget, log zerolog.Logger) *connections.Set {
	total := conf.MaxConnections
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		if most := files.Cur - files.Cur/descriptorReserve; uint64(total) > most {
			log.Warn().Int("max_connections", total).Uint64("lowered_to", most).Uint64("open_files", files.Cur).
				Msg("the limit of open files allows fewer connections")
			total = int(most)
		}
	}
	return connections.New(connections.Limits{Total: total, PerAddress: conf.MaxConnectionsPerAddress, Heads: budget.Account(memory.Heads)})
}

// openness returns what anyone on the network could do with the listener, "" for nothing.
func (l *listener) openness() string {
	switch {
	case l.secure == nil && !l.tokens:
		return "anybody who reaches this listener may call it: it is neither encrypted (--tls-cert) nor authenticated (--tokens-file)" + l.browsers()
	case l.secure == nil:
		return "tokens and requests to this listener can be read on the network: it is not encrypted (--tls-cert)"
	case !l.tokens && !l.clientCA:
		return "anybody who reaches this listener may call it: there is neither --tokens-file nor --tls-client-ca" + l.browsers()
	}
	return ""
}

// browsers says by which names browsers may call a listener without tokens (access.NewHosts).
func (l *listener) browsers() string {
	if !l.anyHost {
		return ""
	}
	return "; browsers may call it by address, by a name without dots or in a cluster (*.svc), and by its own names, by others only with --allowed-hosts"
}

// serve starts a server on each listener in g. They run until shutdown.
func (li listeners) serve(g *errgroup.Group, handler func(*listener) http.Handler, open *connections.Set, log zerolog.Logger) {
	for _, l := range li {
		l.server = httpapi.NewServer(handler(l), log)
		open.Configure(l.server)
		var secure *tls.Config
		if l.secure != nil {
			secure = l.secure.Server()
		}
		if exposed := l.openness(); exposed != "" && !access.IsLoopback(l.socket.Addr()) {
			log.Warn().Stringer("address", l.socket.Addr()).Str("contract", l.contract).Msg(exposed)
		}
		log.Info().Str("version", version()).Stringer("address", l.socket.Addr()).Str("contract", l.contract).
			Str("scheme", l.scheme()).Int("pid", os.Getpid()).Msg("listening")
		g.Go(func() error {
			if err := l.server.Serve(open.Listener(l.socket, secure)); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve on %s: %w", l.address, err)
			}
			return nil
		})
	}
}

// shutdown lets requests under way finish within grace, and new connections send their first
// request within freshGrace.
func (li listeners) shutdown(ctx context.Context, open *connections.Set) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	defer time.AfterFunc(freshGrace, open.CloseFresh).Stop()
	defer context.AfterFunc(ctx, open.CloseAll)()
	faults := make([]error, len(li))
	var wg sync.WaitGroup
	for i, l := range li {
		wg.Go(func() {
			if err := l.server.Shutdown(ctx); err != nil {
				faults[i] = l.server.Close()
			}
		})
	}
	wg.Wait()
	return errors.Join(faults...)
}
