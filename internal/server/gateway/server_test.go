package gateway_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestHealth: every name is known; all but liveness follow the readiness of the service, which
// needs no workers.
func TestHealth(t *testing.T) {
	w := start(t)
	health := healthpb.NewHealthClient(w.conn)
	want := func(ready healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "readiness", "liveness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"} {
			expected := ready
			if name == "liveness" {
				expected = healthpb.HealthCheckResponse_SERVING
			}
			await(t, func() string {
				got, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
				if err != nil || got.GetStatus() != expected {
					return name + ": " + got.GetStatus().String()
				}
				return ""
			})
		}
	}
	want(healthpb.HealthCheckResponse_SERVING)
	if _, p := w.post(chatPath, chat(servicetest.Prompt(1, 8), "")); p.status != 503 {
		t.Errorf("without workers it answers %+v", p)
	}
	w.put(1, 1)
	w.Remove(1)
	want(healthpb.HealthCheckResponse_SERVING)
	w.Close()
	want(healthpb.HealthCheckResponse_NOT_SERVING)
}

// TestStop: streams under way end as if nothing were, new ones are refused once the delay is
// over.
func TestStop(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	e, _ := w.post(chatPath, chat(servicetest.Prompt(1, 8), `,"stream":true`))
	e.response(200, sse, false)
	watch, err := healthpb.NewHealthClient(w.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.server.Stop(context.Background(), time.Millisecond, time.Minute)
	}()
	await(t, func() string {
		stream, err := w.client.Process(t.Context())
		if err == nil {
			_ = stream.CloseSend()
			_, err = stream.Recv()
		}
		if err == nil || errors.Is(err, io.EOF) {
			return "new requests are taken"
		}
		return ""
	})
	e.chunk(event("a"), false)
	e.chunk("data: [DONE]\n\n", true)
	e.close()
	<-stopped
	w.wantLoads("1/0: 0 0 0")
}

// TestCallers: with a tokens file a gateway needs a token with the role call, and sees the
// models of its scope only.
func TestCallers(t *testing.T) {
	var file strings.Builder
	tokens := map[string]string{}
	for name, g := range map[string]access.Grant{
		"reader": {Name: "reader", Roles: []access.Role{access.Read}},
		"caller": {Name: "caller", Roles: []access.Role{access.Call}},
		"other":  {Name: "other", Roles: []access.Role{access.Call}, Model: "another"},
	} {
		tokens[name] = access.NewToken()
		entry, err := g.Entry(tokens[name])
		if err != nil {
			t.Fatal(err)
		}
		file.WriteString(strings.ReplaceAll("\n"+entry, "\n", "\n  "))
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte("tokens:"+file.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guard, err := access.New(path)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, func(_ *node.Config, c *settings) { c.Envoy.Guard = guard })
	w.put(1, 1)
	for name, want := range map[string]codes.Code{"": codes.Unauthenticated, "wrong": codes.Unauthenticated, "reader": codes.PermissionDenied, "caller": codes.OK, "other": codes.OK} {
		t.Run("token "+name, func(t *testing.T) {
			ctx := t.Context()
			if name != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+tokens[name])
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := w.client.Process(ctx)
			if err != nil {
				t.Fatal(err)
			}
			e := &envoy{t: t, stream: stream, cancel: cancel, config: duplex()}
			e.request(chatPath, false)
			e.body(chat(servicetest.Prompt(1, 8), ""), true)
			if want != codes.OK {
				if _, err := stream.Recv(); status.Code(err) != want {
					t.Errorf("ended with %v", err)
				}
				return
			}
			p := e.placement(true, false)
			if wrong := p.status == 404; wrong != (name == "other") {
				t.Errorf("answered %+v", p)
			}
			e.close()
		})
	}
}

// TestTLS: with a certificate the listener speaks HTTP/2 over TLS.
func TestTLS(t *testing.T) {
	secure, err := certs.SelfSigned("h2")
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, func(_ *node.Config, c *settings) { c.Envoy.TLS = secure })
	w.put(1, 1)
	conn, err := grpc.NewClient(w.conn.Target(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	got, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "liveness"})
	if err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", got, err)
	}
}
