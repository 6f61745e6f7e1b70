package gateway_test

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// said returns what a gateway with this context gets for a chat: the code of the stream, or the
// status in an answer, or 200 for a destination.
func said(ctx context.Context, t *testing.T, client extprocv3.ExternalProcessorClient) (codes.Code, int) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return status.Code(err), 0
	}
	e := &envoy{t: t, stream: stream, cancel: cancel, config: duplex()}
	e.request(chatPath, false)
	e.body(chat(servicetest.Prompt(1, 16), ""), true)
	m, err := stream.Recv()
	if err != nil {
		return status.Code(err), 0
	}
	if i := m.GetImmediateResponse(); i != nil {
		return codes.OK, int(i.GetStatus().GetCode())
	}
	return codes.OK, 200
}

// TestCertifiedCallers: the name in a gateway's certificate stands for a token, and without a
// certificate of the authority there is no connection.
func TestCertifiedCallers(t *testing.T) {
	authority, later := e2e.NewAuthority(t), time.Now().Add(time.Hour)
	own := authority.Issue(t, "picker", later)
	side, err := certs.Load("certificates", certs.Files{Cert: own.Cert, Key: own.Key, CA: authority.File})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("names: [{name: envoy, roles: [call]}, {name: watcher, roles: [read]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	guard, err := access.New(path)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, func(_ *node.Config, c *settings) { c.Envoy.Guard, c.Envoy.TLS = guard, side.ServerFor("h2") })
	w.put(1, 1)
	for name, want := range map[string]struct {
		code   codes.Code
		status int
	}{
		"envoy":   {codes.OK, 200},
		"watcher": {codes.PermissionDenied, 0},
		"unknown": {codes.Unauthenticated, 0},
		"":        {codes.Unavailable, 0}, // no certificate
	} {
		config := &tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12}
		if name != "" {
			config.Certificates = []tls.Certificate{authority.Issue(t, name, later).Load(t)}
		}
		conn, err := grpc.NewClient(w.conn.Target(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		if code, got := said(t.Context(), t, extprocv3.NewExternalProcessorClient(conn)); code != want.code || got != want.status {
			t.Errorf("%q: %v, status %d", name, code, got)
		}
		_ = conn.Close()
	}
	w.wantLoads("1/0: 0 0 0")
}
