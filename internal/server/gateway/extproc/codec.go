package extproc

import (
	"bytes"
	"slices"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec is gRPC's codec for protocol buffers, but for pieces of bodies, which most messages are where
// answers stream. Envoy sends its metadata with each of them: nobody reads it there, and to decode it
// costs more than the piece. An answer that passes a piece on is five messages inside each other, and gRPC's
// codec computes the size of each twice.
type codec struct{ encoding.CodecV2 }

// passed is the ProcessingResponse that passes a piece of a body on.
type passed struct {
	of    protowire.Number // of the response: fieldRequestPassed or fieldResponsePassed
	piece []byte
	end   bool // of the body
}

// Marshal implements encoding.CodecV2. A piece is a passed; everything else is a message.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if p, ok := v.(*passed); ok {
		return mem.BufferSlice{mem.SliceBuffer(p.appendTo(nil))}, nil
	}
	return c.CodecV2.Marshal(v)
}

// The fields of ProcessingResponse, and of what is inside it, that pass a piece on.
const (
	fieldRequestPassed  protowire.Number = 3
	fieldResponsePassed protowire.Number = 4

	fieldCommonResponse protowire.Number = 1 // of BodyResponse
	fieldBodyMutation   protowire.Number = 3 // of CommonResponse
	fieldStreamed       protowire.Number = 3 // of BodyMutation
	fieldStreamedBody   protowire.Number = 1 // of StreamedBodyResponse
	fieldStreamedEnd    protowire.Number = 2 // of StreamedBodyResponse
)

// appendTo appends the message to text.
func (p *passed) appendTo(text []byte) []byte {
	outside := [...]protowire.Number{p.of, fieldCommonResponse, fieldBodyMutation, fieldStreamed}
	var sizes [len(outside)]int // of what each of them has inside
	size := 0
	if len(p.piece) > 0 {
		size += protowire.SizeTag(fieldStreamedBody) + protowire.SizeBytes(len(p.piece))
	}
	if p.end {
		size += protowire.SizeTag(fieldStreamedEnd) + protowire.SizeVarint(1)
	}
	for i := len(outside) - 1; i >= 0; i-- {
		sizes[i] = size
		size = protowire.SizeTag(outside[i]) + protowire.SizeBytes(size)
	}
	text = slices.Grow(text, size)
	for i, field := range outside {
		text = protowire.AppendTag(text, field, protowire.BytesType)
		text = protowire.AppendVarint(text, uint64(sizes[i]))
	}
	if len(p.piece) > 0 {
		text = protowire.AppendTag(text, fieldStreamedBody, protowire.BytesType)
		text = protowire.AppendBytes(text, p.piece)
	}
	if p.end {
		text = protowire.AppendTag(text, fieldStreamedEnd, protowire.VarintType)
		text = protowire.AppendVarint(text, 1)
	}
	return text
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*extprocv3.ProcessingRequest); ok {
		text := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer text.Free()
		if readPiece(text.ReadOnlyData(), m) {
			return nil
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}

// The fields of ProcessingRequest and HttpBody that are read.
const (
	fieldRequestBody  protowire.Number = 4
	fieldResponseBody protowire.Number = 5
	fieldMetadata     protowire.Number = 8
	fieldAttributes   protowire.Number = 9
	// fieldObservability says of a message of a filter in observability_mode that it is one.
	fieldObservability protowire.Number = 10

	fieldBody        protowire.Number = 1
	fieldEndOfStream protowire.Number = 2
)

// readPiece reads a message that has a piece of a body, and nothing else but metadata and attributes,
// which are left out. It reports whether the message is one.
func readPiece(text []byte, m *extprocv3.ProcessingRequest) bool {
	var (
		body     *extprocv3.HttpBody
		of       protowire.Number
		observed bool
	)
	for len(text) > 0 {
		field, kind, n := protowire.ConsumeTag(text)
		if n < 0 {
			return false
		}
		value := text[n:]
		if n = protowire.ConsumeFieldValue(field, kind, value); n < 0 {
			return false
		}
		text, value = value[n:], value[:n]
		if field == fieldObservability && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(value)
			observed = v != 0
			continue
		}
		if kind != protowire.BytesType {
			return false
		}
		switch field {
		case fieldMetadata, fieldAttributes:
		case fieldRequestBody, fieldResponseBody:
			if body != nil {
				return false
			}
			piece, _ := protowire.ConsumeBytes(value)
			if of, body = field, readBody(piece); body == nil {
				return false
			}
		default:
			return false
		}
	}
	switch of {
	case fieldRequestBody:
		m.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}
	case fieldResponseBody:
		m.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}
	}
	if body != nil {
		m.ObservabilityMode = observed
	}
	return body != nil
}

// readBody reads an HttpBody, nil if it has other fields than a piece.
func readBody(text []byte) *extprocv3.HttpBody {
	body := &extprocv3.HttpBody{}
	for len(text) > 0 {
		field, kind, n := protowire.ConsumeTag(text)
		if n < 0 {
			return nil
		}
		text = text[n:]
		switch {
		case field == fieldBody && kind == protowire.BytesType:
			var piece []byte
			if piece, n = protowire.ConsumeBytes(text); n < 0 {
				return nil
			}
			body.Body = bytes.Clone(piece)
		case field == fieldEndOfStream && kind == protowire.VarintType:
			var end uint64
			if end, n = protowire.ConsumeVarint(text); n < 0 {
				return nil
			}
			body.EndOfStream = end != 0
		default:
			return nil
		}
		text = text[n:]
	}
	return body
}
