package gateway

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// messages are requests of Envoy, of every kind.
func messages() map[string]*extproc.ProcessingRequest {
	metadata := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"envoy.lb": {Fields: map[string]*structpb.Value{servedKey: structpb.NewStringValue("10.0.0.1:8000")}},
	}}
	responseBody := func(b *extproc.HttpBody) *extproc.ProcessingRequest_ResponseBody {
		return &extproc.ProcessingRequest_ResponseBody{ResponseBody: b}
	}
	return map[string]*extproc.ProcessingRequest{
		"empty":              {},
		"metadata alone":     {MetadataContext: metadata},
		"headers":            {MetadataContext: metadata, Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{EndOfStream: true}}},
		"trailers":           {Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}}},
		"piece of a request": {MetadataContext: metadata, Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte("a")}}},
		"piece of an answer": {MetadataContext: metadata, Attributes: map[string]*structpb.Struct{"a": {}}, Request: responseBody(&extproc.HttpBody{Body: []byte("data: {}\n\n")})},
		"last piece":         {Request: responseBody(&extproc.HttpBody{Body: []byte("a"), EndOfStream: true})},
		"end alone":          {MetadataContext: metadata, Request: responseBody(&extproc.HttpBody{EndOfStream: true})},
		"empty piece":        {Request: responseBody(&extproc.HttpBody{})},
		"of other fields":    {Request: responseBody(&extproc.HttpBody{Body: []byte("a"), DrainComplete: true})},
		"with modes":         {ProtocolConfig: &extproc.ProtocolConfiguration{}, Request: responseBody(&extproc.HttpBody{Body: []byte("a")})},
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
		var got, want extproc.ProcessingRequest
		err := codec{own}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &got)
		wanted := own.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &want)
		if wanted != nil {
			return // it may be wrong in the metadata of a piece
		}
		if got.GetRequestBody() != nil || got.GetResponseBody() != nil {
			if readPiece(text, &extproc.ProcessingRequest{}) {
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
		if got := readPiece(text, &extproc.ProcessingRequest{}); got != pieces[name] {
			t.Errorf("%s: a piece: %t", name, got)
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
				var m extproc.ProcessingRequest
				if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
