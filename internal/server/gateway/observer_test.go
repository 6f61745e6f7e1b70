package gateway_test

import (
	"errors"
	"io"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/test/helpers/servicetest"
)

// observedChat places a chat whose answer the first filter leaves out, and returns the metadata that Envoy then has.
func (w *world) observedChat(body string) (*envoy, *corev3.Metadata) {
	w.T.Helper()
	e := w.open()
	e.config.ResponseBodyMode = filterv3.ProcessingMode_NONE
	e.request(chatPath, false)
	e.body(body, true)
	lb := e.receive().GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue()
	if e.receive().GetRequestBody() == nil {
		w.T.Fatal("the request's body did not come back")
	}
	return e, &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": lb}}
}

// observer is the stream of a second filter. As Envoy does, it says observability_mode in each message and sends
// the metadata with it.
type observer struct {
	*envoy
	metadata *corev3.Metadata
}

func (w *world) observer(metadata *corev3.Metadata) observer {
	w.T.Helper()
	o := observer{w.open(), metadata}
	o.config.RequestBodyMode, o.config.ResponseBodyMode = filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_STREAMED
	return o
}

func (o observer) show(m *extprocv3.ProcessingRequest) {
	m.ObservabilityMode, m.MetadataContext = true, o.metadata
	o.send(m)
}

func (o observer) head(code, contentType string, end bool) {
	o.show(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers: headerMap([]string{":status", code, "content-type", contentType}), EndOfStream: end,
	}}})
}

func (o observer) piece(text string, end bool) {
	o.show(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: end}}})
}

// ends waits until the picker ends the stream, without having answered anything.
func (o observer) ends() {
	o.t.Helper()
	if m, err := o.stream.Recv(); !errors.Is(err, io.EOF) {
		o.t.Errorf("a second filter got %v, %v", m, err)
	}
}

// TestObserver: a second filter in observability_mode shows the first token of a streamed answer, and no more of it
// is wanted; of an answer in one piece it shows the usage. The stream of the first filter alone ends a booking that
// is not seen to its end.
func TestObserver(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(1, 16)
	e, metadata := w.observedChat(chat(ids, `,"stream":true`))
	o := w.observer(metadata)
	o.head("200", sse, false)
	o.piece(": a comment\n\n", false)
	w.wantLoads("1/0: 16 4 1")
	o.piece(event("a"), false)
	o.ends()
	w.wantLoads("1/0: 0 4 1")
	w.wantCount("prefill_completed_total", `by="stream"`, 1)
	again := w.observer(metadata)
	again.head("200", sse, false)
	again.ends()
	e.close()
	w.wantLoads("1/0: 0 0 0")

	late := w.observer(metadata) // the request is over
	late.head("200", sse, false)
	late.ends()

	whole, metadata := w.observedChat(chat(ids, ""))
	o = w.observer(metadata)
	o.head("200", "application/json", false)
	o.piece(`{"usage":{"prompt_tokens":16,`, false)
	o.piece(`"prompt_tokens_details":{"cached_tokens":4}}}`, true)
	o.ends()
	w.wantLoads("1/0: 0 0 0")
	w.wantCount("cached_tokens_sum", "", 4)
	whole.send(responseTrailersOf())
	if whole.receive().GetResponseTrailers() == nil {
		t.Error("the trailers were not answered")
	}
	whole.close()

	both, metadata := w.observedChat(chat(ids, `,"stream":true`)) // both filters send the headers
	both.response(200, sse, false)
	o = w.observer(metadata)
	o.head("200", sse, false)
	o.piece(event("a"), false)
	o.ends()
	w.wantCount("prefill_completed_total", `by="stream"`, 2)
	both.cancel()
	w.wantLoads("1/0: 0 0 0")

	failed, metadata := w.observedChat(chat(ids, `,"stream":true`))
	o = w.observer(metadata)
	o.head("500", "application/json", false) // it says nothing of a token
	o.ends()
	failed.close()
	w.wantLoads("1/0: 0 0 0")

	left, metadata := w.observedChat(chat(ids, `,"stream":true`)) // Envoy holds the second stream a little longer
	o = w.observer(metadata)
	o.head("200", sse, false)
	left.close()
	w.wantLoads("1/0: 0 0 0")
	o.piece(event("a"), false)
	o.ends()
	w.wantLoads("1/0: 0 0 0")
}

// TestObserverOfOthers: a second filter may reach another picker than the first one did, or send what cannot name
// its request.
func TestObserverOfOthers(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	unknown := w.observer(&corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": {}}})
	unknown.head("200", sse, false)
	unknown.ends()
	headless := w.observer(nil)
	headless.piece("x", false)
	if _, err := headless.stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a filter that begins with a body: %v", err)
	}
	if e, _ := w.post(chatPath, chat(servicetest.Prompt(1, 16), "")); e != nil {
		e.close()
	}
	w.wantLoads("1/0: 0 0 0")
}
