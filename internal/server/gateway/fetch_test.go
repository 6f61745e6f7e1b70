package gateway_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

const sourceHeader = "x-kv-cache-source-host-port" // llm-d-router, pkg/common/routing

func peerAt(port string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.KVPeerEndpoint = new("10.9.9.9:" + port) }
}

// load books so much on a worker that another one is chosen.
func (w *world) load(worker uint64) {
	w.T.Helper()
	if _, err := w.Reserve(&selection.ReserveRequest{
		Scope: servicetest.Scope, ID: "load", Rank: catalog.Rank{Worker: worker}, Prompt: servicetest.Ask(servicetest.Prompt(90, 4000)).Prompt,
	}); err != nil {
		w.T.Fatal(err)
	}
}

// TestPeerHeader: the sidecar of the engine that computes the prompt is told which engine has more of it. The header is
// that of llm-d's p2p-source-producer, which removes a client's own, too.
func TestPeerHeader(t *testing.T) {
	w := start(t)
	ids := servicetest.Prompt(7, 16)
	ask := func(name, want string) {
		t.Helper()
		e, p := w.post(chatPath, chat(ids, ""), sourceHeader, "evil:1")
		if p.headers[sourceHeader] != want || slices.Contains(p.removed, sourceHeader) != (want == "") {
			t.Errorf("%s: %+v", name, p)
		}
		e.close()
	}
	w.put(1, 1, peerAt("1"))
	w.announce(1, 0, ids)
	ask("alone", "")
	w.put(2, 1, peerAt("2"))
	w.announce(2, 0, ids[:8])
	w.load(1)
	ask("the source is busy", "10.9.9.9:1")
	w.put(3, 1, role("prefill"))
	ask("another one prefills, without a sidecar", "")
	w.Patch(3, catalog.Patch{KVPeerEndpoint: new("10.9.9.9:3")})
	ask("another one prefills", "10.9.9.9:1")
}

// TestHintsInBody: the body of an engine that reads hints there has them in place of a client's own, which reach no
// engine. The member is that of SGLang's GenerateReqInput (python/sglang/srt/managers/kv_hints.py).
func TestHintsInBody(t *testing.T) {
	w := start(t)
	ids := servicetest.Prompt(7, 16)
	hinted := func(reads bool) func(*catalog.Record) {
		return func(r *catalog.Record) {
			r.RouterHintWorkerType, r.KVHintsInBody = new("any"), &reads
			r.RouterHintSourceControlEndpoints = map[uint32]string{0: "tcp://source:9"}
		}
	}
	ask := func(more string) string {
		t.Helper()
		e, p := w.post(chatPath, chat(ids, more))
		e.close()
		return p.body
	}
	const own = `,"kv_hints":{"protocol_version":"0.1","message_id":"x","actions":[{"action_type":"kv.fetch"}]}`
	w.put(1, 1, hinted(true))
	w.announce(1, 0, ids)
	if got, want := ask(own), chat(ids, `,"kv_hints":null`); got != want {
		t.Errorf("a client's own: %s", got)
	}
	if got, want := ask(""), chat(ids, ""); got != want {
		t.Errorf("no source: %s", got)
	}
	w.put(2, 1, hinted(false))
	w.load(1)
	if got := ask(own); strings.Contains(got, "actions") {
		t.Errorf("an engine that reads none: %s", got)
	}
	w.Patch(2, catalog.Patch{KVHintsInBody: new(true)})
	var got struct {
		Model string        `json:"model"`
		Hints client.KVHint `json:"kv_hints"`
	}
	if err := json.Unmarshal([]byte(ask(own)), &got); err != nil {
		t.Fatal(err)
	}
	e := w.Engine(1, 0)
	want := []client.KVHintAction{{
		ID: "a1", Type: "kv.fetch", Version: "1.0",
		Payload: client.KVFetchHint{SourceControlEndpoint: "tcp://source:9", BlockHashes: e.Names(ids, servicetest.BlockSize)},
	}}
	if d := cmp.Diff(want, got.Hints.Actions); d != "" || got.Hints.ProtocolVersion != "0.1" || got.Hints.MessageID == "" || got.Model != "m" {
		t.Errorf("got %+v, actions (-want +got):\n%s", got, d)
	}
}
