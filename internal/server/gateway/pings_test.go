package gateway_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// TestNoPings: a message is answered without a ping that measures the connection.
func TestNoPings(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	conn, err := net.Dial("tcp", w.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	check(err)
	frames := http2.NewFramer(conn, conn)
	check(frames.WriteSettings())
	var head bytes.Buffer
	fields := hpack.NewEncoder(&head)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", extprocv3.ExternalProcessor_Process_FullMethodName},
		{":authority", "picker"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		check(fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	check(frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}))
	message, err := proto.Marshal(steps[1])
	check(err)
	framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	check(frames.WriteData(1, false, framed))
	for {
		frame, err := frames.ReadFrame()
		check(err)
		switch frame.(type) {
		case *http2.PingFrame:
			t.Error("a ping")
		case *http2.DataFrame:
			return
		}
	}
}
