// Package natstest starts real NATS servers for tests.
package natstest

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// Server is a nats-server in a process of its own.
type Server struct {
	URL     string
	bin     string
	port    string
	args    []string
	process *e2e.Process // nil: killed
}

// Start starts a server with further arguments; its streams are kept over Restart. It skips the
// test where NATS_SERVER_BIN does not name a server: make test-fleet builds one.
func Start(t *testing.T, args ...string) *Server {
	t.Helper()
	bin := os.Getenv("NATS_SERVER_BIN")
	if bin == "" {
		t.Skip("NATS_SERVER_BIN names no nats-server")
	}
	s := newServer(t, bin, strconv.Itoa(e2e.FreePort(t)), args...)
	s.Restart(t)
	return s
}

// Cluster starts a cluster of n servers.
func Cluster(t *testing.T, n int) []*Server {
	t.Helper()
	bin := os.Getenv("NATS_SERVER_BIN")
	if bin == "" {
		t.Skip("NATS_SERVER_BIN names no nats-server")
	}
	var routes []string
	for range n {
		routes = append(routes, "nats://127.0.0.1:"+strconv.Itoa(e2e.FreePort(t)))
	}
	var servers []*Server
	for i := range n {
		s := newServer(t, bin, strconv.Itoa(e2e.FreePort(t)), "-n", "n"+strconv.Itoa(i), "-cluster_name", "c", "-cluster", routes[i], "-routes", strings.Join(routes, ","))
		s.Restart(t)
		servers = append(servers, s)
	}
	return servers
}

func newServer(t *testing.T, bin, port string, args ...string) *Server {
	t.Helper()
	s := &Server{
		URL: "nats://127.0.0.1:" + port, bin: bin, port: port,
		args: append([]string{"-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(t.TempDir(), "streams")}, args...),
	}
	return s
}

// CPU is the time of the processor that the server has used since it was started last.
func (s *Server) CPU() (time.Duration, error) { return s.process.CPU() }

// Restart starts the server again after Kill, and waits until it listens.
func (s *Server) Restart(t *testing.T) {
	t.Helper()
	s.process = e2e.Start(t, e2e.Options{Command: append([]string{s.bin}, s.args...)})
	e2e.Eventually(t, "nats-server listens", func() error {
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:"+s.port)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Kill ends the server at once.
func (s *Server) Kill(t *testing.T) {
	t.Helper()
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
}
