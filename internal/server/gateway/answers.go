package gateway

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// maxChunk is the longest piece of a body that an answer carries, in bytes. Envoy accepts 64
// KiB; other endpoint pickers send this much.
const maxChunk = 62_000

// removed are the headers that clients must not set, so that the picker removes them. A header
// that the picker sets is not in the list: it is overwritten, and Envoy wants no header in both
// lists.
var removed = []string{
	"x-gateway-inference-fairness-id", "x-gateway-inference-objective", "x-gateway-model-name-rewrite",
	subsetKey, servedKey,
}

// placed are the headers that a placement may set; those that it does not set are removed.
var placed = [...]string{rankHeader, prefillerHeader, prefillRankHeader}

// removals has the headers to remove for each set of headers of placed that a placement sets, by
// their bits: those of removed, and the rest of placed.
var removals = func() (lists [1 << len(placed)][]string) {
	for set := range lists {
		lists[set] = slices.Clone(removed)
		for i, name := range placed {
			if set&(1<<i) == 0 {
				lists[set] = append(lists[set], name)
			}
		}
	}
	return lists
}()

// headersPlaced answers the request's headers. The chosen endpoint stands both in a header and
// in the load balancer's metadata.
func headersPlaced(p *placement) *extproc.ProcessingResponse {
	destinations := strings.Join(p.destinations, ",")
	set := []*corev3.HeaderValueOption{header(destinationKey, destinations)}
	which := 0
	for i, value := range [len(placed)]string{rankText(p.rank), p.prefiller, rankText(p.prefillRank)} {
		if value != "" {
			which |= 1 << i
			set = append(set, header(placed[i], value))
		}
	}
	for _, name := range p.trace.Keys() {
		if value := p.trace.Get(name); value != "" {
			set = append(set, header(name, value))
		}
	}
	return &extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{
			Response: &extproc.CommonResponse{
				ClearRouteCache: true,
				HeaderMutation:  &extproc.HeaderMutation{SetHeaders: set, RemoveHeaders: removals[which]},
			},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			lbNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				destinationKey: structpb.NewStringValue(destinations),
			}}),
		}},
	}
}

// rankText returns the value of a header that names a rank, "" for nil.
func rankText(rank *uint32) string {
	if rank == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*rank), 10)
}

func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// streamed is one piece of a body.
func streamed(piece []byte, end bool) *extproc.BodyResponse {
	return &extproc.BodyResponse{Response: &extproc.CommonResponse{BodyMutation: &extproc.BodyMutation{
		Mutation: &extproc.BodyMutation_StreamedResponse{
			StreamedResponse: &extproc.StreamedBodyResponse{Body: piece, EndOfStream: end},
		},
	}}}
}

func requestBody(piece []byte, end bool) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: streamed(piece, end)}}
}

func responseBody(piece []byte, end bool) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: streamed(piece, end)}}
}

func requestTrailers() *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}}}
}

func responseTrailers() *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}}
}

func responseHeaders() *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{Response: &extproc.CommonResponse{}}},
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

// immediate answers the client in the engine's place. retryAfter is the value of Retry-After in
// seconds, for problems that pass; 0 leaves the header out.
func immediate(p *problem, kind openai.Kind, retryAfter int) *extproc.ProcessingResponse {
	set := []*corev3.HeaderValueOption{header("content-type", "application/json")}
	if p.retry && retryAfter > 0 {
		set = append(set, header("retry-after", strconv.Itoa(retryAfter)))
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extproc.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(p.status)},
			Headers: &extproc.HeaderMutation{SetHeaders: set},
			Body:    openai.AppendError(nil, kind, p.text, p.kind, p.code),
			Details: "endpoint_picker_" + p.code,
		},
	}}
}
