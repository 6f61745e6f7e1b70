package gateway_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

const jsonType = "application/json"

// keep sends a request that an engine answers with a text, and returns the engine.
func (w *world) keep(path, body, contentType, answer string, fields ...string) string {
	w.T.Helper()
	e, p := w.post(path, body, fields...)
	if p.status != 0 {
		w.T.Fatalf("%s: %+v", path, p)
	}
	e.response(200, contentType, false)
	for ; len(answer) > 7; answer = answer[7:] {
		e.chunk(answer[:7], false)
	}
	e.chunk(answer, true)
	e.close()
	return p.destination
}

// goes returns where a request without a body goes, which is answered with a status and a text.
func (w *world) goes(method, path string, status int, answer string, fields ...string) string {
	w.T.Helper()
	e := w.open()
	e.request(path, true, append([]string{":method", method}, fields...)...)
	p := e.placement(false, false)
	if p.status != 0 {
		return fmt.Sprint(p.status)
	}
	e.response(status, jsonType, false)
	e.chunk(answer, true)
	e.close()
	return p.destination
}

// always fails unless where returns the wanted engine ten times: a choice by load would miss it among six.
func always(t *testing.T, what, want string, where func() string) {
	t.Helper()
	for range 10 {
		if got := where(); got != want {
			t.Errorf("%s goes to %s, want %s", what, got, want)
			return
		}
	}
}

// spread fails if where always returns the same.
func spread(t *testing.T, what string, where func() string) {
	t.Helper()
	seen := make(map[string]bool)
	for range 40 {
		seen[where()] = true
	}
	if len(seen) < 2 {
		t.Errorf("%s always goes to %v", what, seen)
	}
}

// sixWorkers has the engines of two models.
func sixWorkers(w *world) {
	for id := range uint64(4) {
		w.put(id+1, 1, named("m"))
	}
	w.put(5, 1, named("n"))
	w.put(6, 1, named("n"))
}

func unnamed(_ *node.Config, c *settings) { c.Models = nil }

// TestStoredByID: what names the id of a response, a file or a batch goes to the engine whose answer showed it,
// in JSON or in an event, whatever session it has. The shapes of the answers are those of OpenAI's API
// reference, and of vLLM's response.created event.
func TestStoredByID(t *testing.T) {
	w := start(t, unnamed)
	sixWorkers(w)
	ask := func(more string) string {
		return `{"model":"m","input":"1 2 3"` + more + `}`
	}
	first := w.keep("/v1/responses", ask(""), jsonType, `{"object":"response","output":[{"id":"msg_1","type":"message"}],"id":"resp_1"}`)
	second := w.keep("/v1/responses", ask(`,"stream":true`), sse,
		"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_2\",\"object\":\"response\"}}\n\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\",\"item_id\":\"msg_2\"}\n\n")
	file := w.keep("/v1/files", "--x--", jsonType, `{"id":"file-1","object":"file","purpose":"batch"}`, "content-type", "multipart/form-data; boundary=x")
	for _, tt := range []struct{ id, method, path, want string }{
		{"resp_1", "GET", "/v1/responses/resp_1", first},
		{"resp_1", "GET", "/prefix/v1/responses/resp_1?include=x", first},
		{"resp_1", "GET", "/v1/responses/resp_1/input_items", first},
		{"resp_1", "GET", "/v1/responses/resp%5F1", first},
		{"resp_2", "GET", "/v1/responses/resp_2", second},
		{"resp_2", "POST", "/v1/responses/resp_2/cancel", second},
		{"file-1", "GET", "/v1/files/file-1", file},
		{"file-1", "GET", "/v1/files/file-1/content", file},
	} {
		always(t, tt.method+" "+tt.path, tt.want, func() string { return w.goes(tt.method, tt.path, 200, `{"id":"`+tt.id+`"}`) })
	}
	always(t, "a batch of the file", file, func() string {
		return w.keep("/v1/batches", `{"input_file_id":"file-1","endpoint":"/v1/chat/completions"}`, jsonType, `{"id":"batch_1","output_file_id":"file-out","error_file_id":null}`)
	})
	always(t, "the batch", file, func() string { return w.goes("GET", "/v1/batches/batch_1", 200, `{}`) })
	always(t, "its output", file, func() string { return w.goes("GET", "/v1/files/file-out/content", 200, `{"id":"file-x"}`) })
	spread(t, "what a file has as text", func() string { return w.goes("GET", "/v1/files/file-x", 404, `{}`) })
	spread(t, "an item's id", func() string { return w.goes("GET", "/v1/responses/msg_1", 404, `{}`) })
	always(t, "the next turn", first, func() string {
		return w.keep("/v1/responses", ask(`,"previous_response_id":"resp_1"`), jsonType, `{}`, "x-session-id", "s")
	})
	// A deleted response is nowhere; one that was not found is still where it was.
	w.goes("DELETE", "/v1/responses/resp_2", 404, `{}`)
	always(t, "what was not deleted", second, func() string { return w.goes("GET", "/v1/responses/resp_2", 200, `{"id":"resp_2"}`) })
	w.goes("DELETE", "/v1/responses/resp_2", 200, `{"id":"resp_2","deleted":true}`)
	spread(t, "what was deleted", func() string { return w.goes("GET", "/v1/responses/resp_2", 404, `{}`) })
	// An id that a search has found is known from then on.
	found := w.goes("GET", "/v1/responses/resp_2", 200, `{"id":"resp_2"}`)
	always(t, "what was found again", found, func() string { return w.goes("GET", "/v1/responses/resp_2", 200, `{"id":"resp_2"}`) })
}

// TestStoredLeaves: without its engine an id has no effect. An engine that drains still answers for what it has,
// but gets no new turn. A subset comes first.
func TestStoredLeaves(t *testing.T) {
	w := start(t, unnamed)
	sixWorkers(w)
	at1 := w.keep("/v1/responses", `{"model":"m","input":"1"}`, jsonType, `{"id":"resp_1"}`)
	id := uint64(at1[len("10.0.0.")] - '0')
	get := func() string { return w.goes("GET", "/v1/responses/resp_1", 404, `{}`) }
	turn := func() string {
		return w.keep("/v1/responses", `{"model":"m","input":"1","previous_response_id":"resp_1"}`, jsonType, `{}`)
	}
	e := w.open()
	e.subset = structpb.NewStringValue(at(id%4 + 1))
	e.request("/v1/responses/resp_1", true)
	if p := e.placement(false, false); p.destination != at(id%4+1) {
		t.Errorf("in another subset: %+v", p)
	}
	e.close()
	stays := selection.ReserveRequest{ // an engine that drains and is idle is removed after a second
		Scope: catalog.Scope{Model: "m", Tenant: catalog.DefaultName}, ID: "stays", Rank: catalog.Rank{Worker: id},
		Prompt: selection.Prompt{HasSequenceHashes: true, HasISLTokens: true}, EffectivePrefillTokens: new(uint64),
	}
	if _, err := w.Reserve(&stays); err != nil {
		t.Fatal(err)
	}
	w.drain(id)
	always(t, "a response of a draining engine", at1, get)
	for range 10 {
		if got := turn(); got == at1 {
			t.Fatal("a draining engine gets a new turn")
		}
	}
	w.Remove(id)
	for range 20 {
		if got := get(); got == at1 || got == "503" {
			t.Fatalf("without its engine: %s", got)
		}
	}
	spread(t, "without its engine", get)
}

// TestStoredOfTenants: another tenant's id steers nothing, nor does its answer.
func TestStoredOfTenants(t *testing.T) {
	w := start(t, unnamed)
	sixWorkers(w)
	mine := w.keep("/v1/responses", `{"model":"m","input":"1"}`, jsonType, `{"id":"resp_1"}`, "x-tenant-id", "a")
	get := func(fields ...string) func() string {
		return func() string { return w.goes("GET", "/v1/responses/resp_1", 404, `{}`, fields...) }
	}
	always(t, "the tenant's", mine, get("x-tenant-id", "a"))
	spread(t, "another tenant's", get("x-tenant-id", "b"))
	spread(t, "nobody's", get())
	for range 10 { // whatever others' engines call theirs
		w.keep("/v1/responses", `{"model":"m","input":"1"}`, jsonType, `{"id":"resp_1"}`, "x-tenant-id", "b")
	}
	always(t, "the tenant's", mine, get("x-tenant-id", "a"))
}

// TestStoredBySession: without a known id, and where answers are not seen, what is about such things goes
// where its session is, and what leaves something there binds the session.
func TestStoredBySession(t *testing.T) {
	w := start(t, unnamed, func(c *node.Config, _ *settings) { c.Selection.SessionTTL = time.Hour })
	sixWorkers(w)
	none := func(path, body string, get bool) string {
		t.Helper()
		e := w.open()
		e.config.ResponseBodyMode = filterv3.ProcessingMode_NONE
		e.request(path, get, "x-session-id", "s")
		if !get {
			e.body(body, true)
		}
		p := e.placement(!get, false)
		e.response(200, jsonType, true)
		e.close()
		return p.destination
	}
	home := none("/v1/responses", `{"model":"m","input":"1"}`, false)
	for _, path := range []string{"/v1/responses/resp_9", "/v1/responses/resp_9/input_items", "/v1/files", "/v1/files/f/content", "/v1/batches/b"} {
		always(t, path, home, func() string { return none(path, "", true) })
	}
	always(t, "an upload", home, func() string { return none("/v1/files", "x", false) })
	other := w.keep("/v1/files", "x", jsonType, `{"id":"file-2"}`, "x-session-id", "t")
	always(t, "a session that began with a file", other, func() string { return w.goes("GET", "/v1/batches", 200, `{}`, "x-session-id", "t") })
	known := w.keep("/v1/responses", `{"model":"n","input":"1"}`, jsonType, `{"id":"resp_n"}`)
	always(t, "an id, harder than a session", known, func() string {
		return w.goes("GET", "/v1/responses/resp_n", 200, `{"id":"resp_n"}`, "x-session-id", "s")
	})
	spread(t, "an unknown session", func() string { return w.goes("GET", "/v1/responses/resp_9", 404, `{}`, "x-session-id", "u") })
	spread(t, "another route", func() string { return w.goes("GET", "/v1/models", 200, `{}`, "x-session-id", "s") })
}

// TestStoredRanks: an id is of the rank whose engine shows it, also where the gateway has gone on to another one.
func TestStoredRanks(t *testing.T) {
	w := start(t)
	w.put(1, 4, func(r *catalog.Record) {
		r.RankEndpoints = map[uint32]string{0: "http://10.0.0.1:8000", 1: "http://10.0.0.1:8001", 2: "http://10.0.0.1:8002", 3: "http://10.0.0.1:8003"}
	})
	e, p := w.post("/v1/responses", `{"model":"m","input":"1"}`)
	e.served = "10.0.0.1:8000"
	if p.destination == e.served {
		e.served = "10.0.0.1:8001"
	}
	e.response(200, jsonType, false)
	e.chunk(`{"id":"resp_1"}`, true)
	e.close()
	always(t, "the response", e.served, func() string { return w.goes("GET", "/v1/responses/resp_1", 200, `{"id":"resp_1"}`) })
}

// TestStoredAtReplicas: replicas share the engines of ids, with sessions off too, those that come later as well.
func TestStoredAtReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owners := func(c *node.Config) { c.Selection.Owners = true }
		m := servicetest.NewMesh()
		a, b := m.Start(t, "a", servicetest.EventsOff, owners), m.Start(t, "b", servicetest.EventsOff, owners)
		m.Connect(t, "a", "b")
		for _, w := range []*servicetest.World{a, b} {
			w.Put(servicetest.Record(1, 1))
			w.Put(servicetest.Record(2, 1))
		}
		servicetest.Announced()
		rank := catalog.Rank{Worker: 2}
		a.Own(servicetest.Scope, "t", "resp_1", rank)
		time.Sleep(time.Second)
		synctest.Wait()
		if got, ok := b.Owner(servicetest.Scope, "t", "resp_1"); !ok || got != rank {
			t.Errorf("the other replica knows %v, %t", got, ok)
		}
		if _, ok := b.Owner(servicetest.Scope, "u", "resp_1"); ok {
			t.Error("another tenant's id is known")
		}
		b.Disown(servicetest.Scope, "t", "resp_1")
		time.Sleep(time.Second)
		synctest.Wait()
		if _, ok := a.Owner(servicetest.Scope, "t", "resp_1"); ok {
			t.Error("a deleted id is still known")
		}
	})
}

// TestStoredBounds: the ids that are kept are bounded, and of those the longest ago goes.
func TestStoredBounds(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	rank := catalog.Rank{Worker: 1}
	const most = 1 << 16
	for i := range most + 100 {
		w.Own(servicetest.Scope, "", fmt.Sprint(i), rank)
	}
	known := 0
	for i := range most + 100 {
		if _, ok := w.Owner(servicetest.Scope, "", fmt.Sprint(i)); ok {
			known++
		}
	}
	_, first := w.Owner(servicetest.Scope, "", "0")
	_, last := w.Owner(servicetest.Scope, "", fmt.Sprint(most+99))
	if known != most || first || !last {
		t.Errorf("%d ids are known, the first one %t, the last one %t", known, first, last)
	}
	if p := w.goes("GET", "/v1/responses/"+strings.Repeat("x", 10_000), 404, `{"id":"`+strings.Repeat("x", 10_000)+`"}`); p != at(1) {
		t.Errorf("an endless id goes to %s", p)
	}
}
