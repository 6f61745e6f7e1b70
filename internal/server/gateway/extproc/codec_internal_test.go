package extproc

import (
	"bytes"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/server/gateway"
)

// messages are requests of Envoy, of every kind.
func messages() map[string]*extprocv3.ProcessingRequest {
	metadata := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"envoy.lb": {Fields: map[string]*structpb.Value{gateway.ServedHeader: structpb.NewStringValue("10.0.0.1:8000")}},
	}}
	responseBody := func(b *extprocv3.HttpBody) *extprocv3.ProcessingRequest_ResponseBody {
		return &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: b}
	}
	return map[string]*extprocv3.ProcessingRequest{
		"empty":              {},
		"metadata alone":     {MetadataContext: metadata},
		"headers":            {MetadataContext: metadata, Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{EndOfStream: true}}},
		"trailers":           {Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}},
		"piece of a request": {MetadataContext: metadata, Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("a")}}},
		"piece of an answer": {MetadataContext: metadata, Attributes: map[string]*structpb.Struct{"a": {}}, Request: responseBody(&extprocv3.HttpBody{Body: []byte("data: {}\n\n")})},
		"last piece":         {Request: responseBody(&extprocv3.HttpBody{Body: []byte("a"), EndOfStream: true})},
		"end alone":          {MetadataContext: metadata, Request: responseBody(&extprocv3.HttpBody{EndOfStream: true})},
		"empty piece":        {Request: responseBody(&extprocv3.HttpBody{})},
		"of other fields":    {Request: responseBody(&extprocv3.HttpBody{Body: []byte("a"), DrainComplete: true})},
		"with modes":         {ProtocolConfig: &extprocv3.ProtocolConfiguration{}, Request: responseBody(&extprocv3.HttpBody{Body: []byte("a")})},
	}
}

// FuzzCodec proves that the codec reads what gRPC's own reads, but for the metadata and attributes of
// pieces.
func FuzzCodec(f *testing.F) {
	own := encoding.GetCodecV2(grpcproto.Name)
	for name, m := range messages() {
		text, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(name, err)
		}
		f.Add(text)
		f.Add(append(text, text...)) // the same field twice
		f.Add(text[:len(text)/2])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want extprocv3.ProcessingRequest
		err := codec{own}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &got)
		wanted := own.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &want)
		if wanted != nil {
			return // it may be wrong in the metadata of a piece
		}
		if got.GetRequestBody() != nil || got.GetResponseBody() != nil {
			if readPiece(text, &extprocv3.ProcessingRequest{}) {
				want.MetadataContext, want.Attributes = nil, nil
			}
		}
		if err != nil || !proto.Equal(&got, &want) {
			t.Fatalf("read %v, %v, want %v", &got, err, &want)
		}
	})
}

// TestPieces: pieces are read without their metadata, and everything else with it.
func TestPieces(t *testing.T) {
	pieces := map[string]bool{"piece of a request": true, "piece of an answer": true, "last piece": true, "end alone": true, "empty piece": true}
	for name, m := range messages() {
		text, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(name, err)
		}
		if got := readPiece(text, &extprocv3.ProcessingRequest{}); got != pieces[name] {
			t.Errorf("%s: a piece: %t", name, got)
		}
	}
}

// TestPassed: what passes a piece on is the message that Envoy's own definition makes of it.
func TestPassed(t *testing.T) {
	own := codec{encoding.GetCodecV2(grpcproto.Name)}
	for _, size := range []int{0, 1, 100, 127, 128, 16_383, 16_384, maxChunk} {
		for _, end := range []bool{false, true} {
			piece := bytes.Repeat([]byte("a"), size)
			body := &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
				Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: piece, EndOfStream: end}},
			}}}
			for of, want := range map[protowire.Number]*extprocv3.ProcessingResponse{
				fieldRequestPassed:  {Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: body}},
				fieldResponsePassed: {Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: body}},
			} {
				text, err := own.Marshal(&passed{of, piece, end})
				if err != nil {
					t.Fatal(err)
				}
				var got extprocv3.ProcessingResponse
				if err := own.Unmarshal(text, &got); err != nil || !proto.Equal(&got, want) {
					t.Errorf("field %d, %d bytes, end %t: %v, %v", of, size, end, &got, err)
				}
			}
		}
	}
}

// BenchmarkPassed: what passes a piece of an answer on.
func BenchmarkPassed(b *testing.B) {
	own := codec{encoding.GetCodecV2(grpcproto.Name)}
	piece := bytes.Repeat([]byte("a"), 200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := own.Marshal(&passed{fieldResponsePassed, piece, false}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPiece: a piece of an answer with Envoy's metadata, by gRPC's codec and by ours.
func BenchmarkPiece(b *testing.B) {
	own := encoding.GetCodecV2(grpcproto.Name)
	text, err := proto.Marshal(messages()["piece of an answer"])
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]encoding.CodecV2{"gRPC": own, "ours": codec{own}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var m extprocv3.ProcessingRequest
				if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
