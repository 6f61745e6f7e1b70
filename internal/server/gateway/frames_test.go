package gateway_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/extproc"
)

// rawGateway speaks HTTP/2 with the endpoint picker by the frame.
type rawGateway struct {
	*http2.Framer

	t *testing.T
}

// dialRaw opens a connection of a gateway that does not heed the settings of the other side.
func dialRaw(t *testing.T, address string) rawGateway {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	g := rawGateway{http2.NewFramer(conn, conn), t}
	_, err = io.WriteString(conn, http2.ClientPreface)
	g.check(err)
	g.check(g.WriteSettings())
	return g
}

func (g rawGateway) check(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// call begins a call of a method on a stream.
func (g rawGateway) call(stream uint32, method string) {
	g.t.Helper()
	var head bytes.Buffer
	fields := hpack.NewEncoder(&head)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", "picker"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		g.check(fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})) // kept in no table
	}
	g.check(g.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true}))
}

// send sends a message on a stream.
func (g rawGateway) send(stream uint32, m proto.Message) {
	g.t.Helper()
	message, err := proto.Marshal(m)
	g.check(err)
	g.check(g.WriteData(stream, false, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)))
}

// TestNoPings: a message is answered without a ping that measures the connection.
func TestNoPings(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	g := dialRaw(t, w.address)
	g.call(1, extprocv3.ExternalProcessor_Process_FullMethodName)
	g.send(1, steps[1])
	for {
		frame, err := g.ReadFrame()
		g.check(err)
		switch frame.(type) {
		case *http2.PingFrame:
			t.Error("a ping")
		case *http2.DataFrame:
			return
		}
	}
}

// listenHealth serves the health service of an endpoint picker, and returns its address.
func listenHealth(t *testing.T, g *gateway.Gateway) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, ended := extproc.New(extproc.Config{Log: zerolog.Nop()}, g), make(chan error, 1)
	go func() { ended <- server.ServeHealth(ln) }()
	t.Cleanup(func() {
		server.Stop(context.Background(), 0, time.Minute)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// TestStreamsOfAConnection: the streams of a connection are bounded, although its gateway does not heed the bound.
// gRPC has none by itself.
func TestStreamsOfAConnection(t *testing.T) {
	const beyond = 3
	for _, c := range []struct {
		name       string
		probes     bool
		maxStreams int
		most       int
	}{
		{"few requests", false, 1, 1024},
		{"many requests", false, 600, 1200},
		{"probes", true, 100, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := start(t, func(_ *node.Config, s *settings) { s.MaxStreams = c.maxStreams })
			address := w.address
			if c.probes {
				address = listenHealth(t, w.gateway)
			}
			g := dialRaw(t, address)
			for i := range uint32(c.most + beyond) {
				g.call(2*i+1, healthpb.Health_Watch_FullMethodName) // stays, while a request makes room after 2 s
			}
			g.check(g.WritePing(false, [8]byte{'e', 'n', 'd'})) // answered after what came before it
			var refused []uint32
			for {
				frame, err := g.ReadFrame()
				g.check(err)
				switch frame := frame.(type) {
				case *http2.RSTStreamFrame:
					if frame.ErrCode != http2.ErrCodeRefusedStream {
						t.Errorf("stream %d: %v", frame.StreamID, frame.ErrCode)
					}
					refused = append(refused, frame.StreamID)
				case *http2.PingFrame:
					if !frame.IsAck() {
						g.check(g.WritePing(true, frame.Data))
						continue
					}
					want := make([]uint32, beyond)
					for i := range want {
						want[i] = uint32(2*(c.most+i) + 1)
					}
					if !slices.Equal(refused, want) {
						t.Errorf("streams %d are refused, want %d", refused, want)
					}
					return
				}
			}
		})
	}
}
