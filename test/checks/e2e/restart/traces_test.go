package restart_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/tracetest"
)

// TestTraces: spans of a request, of event batches, snapshots and a recovery come to a collector, each
// below its cause: a caller's span, and for the dump that a peer serves the recovery of the other. The
// trace of a decision stands in /decisions and in the exemplars.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := tracetest.Start(t)
	dir := t.TempDir()
	env := map[string]string{"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
	args := []string{"--otlp-endpoint", c.GRPC, "--data-dir", dir, "--snapshot-interval", "30ms"}
	s := e2e.Serve(t, env, args...)
	engines := []*engine{newEngine(t, 1, false)}
	register(t, s, engines)
	engines[0].store(0, chainBlocks)
	e2e.Eventually(t, "the index has all", func() error { return claimed(t, s, engines, true) })

	const trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	call := func(method, path, body string, header ...string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s, %v", resp.StatusCode, text, err)
		}
		return string(text)
	}
	call(http.MethodPost, "/select_and_reserve", `{"model_name":"m","tenant_id":"default","token_ids":[1,2,3,4],"reservation_id":"r"}`,
		"traceparent", "00-"+trace+"-"+caller+"-01", "tracestate", "a=b")
	got := c.Await(t, trace, "POST /select_and_reserve")
	if tree := got.Under(caller); tree != "POST /select_and_reserve(select(hash look up choose book))" {
		t.Errorf("%s in:\n%v", tree, got)
	}
	if of := got.Named("select")[0].Attributes; of["select_service.reservation_id"] != "r" || of["service.name"] != "select-service" {
		t.Errorf("%v", of)
	}
	if decisions := call(http.MethodGet, "/decisions", ""); !strings.Contains(decisions, `"trace_id":"`+trace+`"`) {
		t.Errorf("decisions: %s", decisions)
	}
	if page := call(http.MethodGet, "/metrics", "", "Accept", "application/openmetrics-text"); !strings.Contains(page, `trace_id="`+trace+`"`) {
		t.Error("no exemplar")
	}
	if batch := c.Await(t, "", "event batch").Named("event batch")[0]; batch.Attributes["select_service.worker_id"] != "1" || batch.Parent != "" {
		t.Errorf("%+v", batch)
	} else if tree := c.Await(t, batch.Trace, "event batch").Under(batch.ID); tree != "wait apply" {
		t.Errorf("an event batch is %s", tree)
	}
	c.Await(t, "", "write snapshot")

	// The other sends its spans over HTTP, so that what comes from both is one trace.
	delete(env, "OTEL_EXPORTER_OTLP_PROTOCOL")
	e2e.Serve(t, env, "--otlp-endpoint", c.HTTP, "--indexer-peers", s.URL())
	recovery := c.Await(t, "", "recovery").Named("recovery")[0]
	e2e.Eventually(t, "the peer's part of the recovery comes", func() error {
		all := c.Await(t, recovery.Trace, "recovery")
		for _, tree := range []string{"dump of a peer GET /dump", "GET /dump dump of a peer"} {
			if all.Under(recovery.ID) == tree {
				return nil
			}
		}
		return fmt.Errorf("%v", all)
	})

	s.Kill()
	s.Run()
	c.Await(t, "", "restore snapshot")
	for _, span := range c.Await(t, "") {
		if span.Name == "GET /metrics" || span.Name == "GET /loads" || span.Name == "POST /workers" {
			t.Errorf("%s begins a trace", span.Name)
		}
	}
}
