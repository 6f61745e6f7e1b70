package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/gateway"
)

// maxChunk is the longest piece of a body that an answer carries, in bytes. Envoy accepts 64
// KiB; other endpoint pickers send this much.
const maxChunk = 62_000

// headersPlaced answers the request's headers. The chosen endpoint stands both in a header and
// in the load balancer's metadata.
//
// key is what a second filter may name the call by; "": nothing.
func headersPlaced(p *gateway.Placement, key string) *extprocv3.ProcessingResponse {
	destinations := strings.Join(p.Addresses(), ",")
	fields, remove := p.Headers([]gateway.Header{{Name: gateway.DestinationHeader, Value: destinations}})
	set := make([]*corev3.HeaderValueOption, len(fields))
	for i, f := range fields {
		set[i] = header(f.Name, f.Value)
	}
	metadata := map[string]*structpb.Value{gateway.DestinationHeader: structpb.NewStringValue(destinations)}
	if key != "" {
		metadata[observeKey] = structpb.NewStringValue(key)
	}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{
				ClearRouteCache: true,
				HeaderMutation:  &extprocv3.HeaderMutation{SetHeaders: set, RemoveHeaders: remove},
			},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			lbNamespace: structpb.NewStructValue(&structpb.Struct{Fields: metadata}),
		}},
	}
}

func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

func requestTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
}

func responseTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
}

func responseHeaders() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{}}},
	}
}

// chunks splits a body into pieces of at most maxChunk bytes and calls send with each. If end
// is set, the last piece ends the body; an empty body is then one empty piece.
func chunks(pieces [][]byte, end bool, send func(piece []byte, end bool) error) error {
	left := 0
	for _, p := range pieces {
		left += len(p)
	}
	if left == 0 {
		if !end {
			return nil
		}
		return send(nil, true)
	}
	for _, p := range pieces {
		for len(p) > 0 {
			n := min(len(p), maxChunk)
			left -= n
			if err := send(p[:n], end && left == 0); err != nil {
				return err
			}
			p = p[n:]
		}
	}
	return nil
}

// immediate answers the client in the engine's place.
func immediate(r gateway.Refusal) *extprocv3.ProcessingResponse {
	var set []*corev3.HeaderValueOption
	if r.Body != nil {
		set = append(set, header("content-type", "application/json"))
	}
	for _, f := range r.Headers {
		set = append(set, header(f.Name, f.Value))
	}
	if r.RetryAfter > 0 {
		set = append(set, header("retry-after", strconv.Itoa(r.RetryAfter)))
	}
	if r.Dropped != "" {
		set = append(set, header(contract.DroppedHeader, r.Dropped))
	}
	if r.Allow != "" {
		set = append(set, header("allow", r.Allow))
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(r.Status)},
			Headers: &extprocv3.HeaderMutation{SetHeaders: set},
			Body:    r.Body,
			Details: "endpoint_picker_" + r.Code,
		},
	}}
}
