package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// tap stands between Envoy and the picker, and looks at what the picker says.
type tap struct {
	extprocv3.UnimplementedExternalProcessorServer
	to extprocv3.ExternalProcessorClient

	// before, if not nil, is called before an answer of the picker goes on.
	before func(*extprocv3.ProcessingResponse)

	mu    sync.Mutex // guards piece
	piece int        // bytes of the longest piece of a body
}

// listen begins to forward to a port of the picker and returns its own.
func (ta *tap) listen(t *testing.T, picker int) int {
	t.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", picker), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ta.to = extprocv3.NewExternalProcessorClient(conn)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(srv, ta)
	healthy := health.NewServer()
	healthy.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(srv, healthy)
	go func() { _ = srv.Serve(ln) }() // ends with Stop
	t.Cleanup(func() {
		srv.Stop()
		_ = conn.Close()
	})
	return ln.Addr().(*net.TCPAddr).Port
}

// Process forwards the messages of a request both ways.
func (ta *tap) Process(down extprocv3.ExternalProcessor_ProcessServer) error {
	up, err := ta.to.Process(down.Context())
	if err != nil {
		return err
	}
	go func() {
		for {
			m, err := down.Recv()
			if err != nil || up.Send(m) != nil {
				_ = up.CloseSend() // the picker sees the end
				return
			}
		}
	}()
	for {
		m, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		ta.note(m)
		if ta.before != nil {
			ta.before(m)
		}
		if err := down.Send(m); err != nil {
			return err
		}
	}
}

func (ta *tap) note(m *extprocv3.ProcessingResponse) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	for _, body := range []*extprocv3.BodyResponse{m.GetRequestBody(), m.GetResponseBody()} {
		piece := body.GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()
		ta.piece = max(ta.piece, len(piece))
	}
}

// longest is the length of the longest piece of a body that the picker has sent.
func (ta *tap) longest() int {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	return ta.piece
}
