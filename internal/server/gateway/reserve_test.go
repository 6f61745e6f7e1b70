package gateway_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// The names are those of llm-d-router (pkg/common/routing/common.go, the plugins reserve-endpoint and endpoint-pin-screener,
// and pkg/coordinator/steps/prefill_decode.go), but for reservationID, which is ours.
const (
	prefer        = "prefer"
	reserved      = "x-llm-d-reserved-host-port"
	pin           = "x-llm-d-pin-host-port"
	profile       = "epp-profile"
	requestID     = "x-request-id"
	reservationID = "x-select-reservation-id"
)

func reserving(_ *node.Config, c *settings) { c.ReserveFor = time.Minute }

// TestReserveEndpoint: a pair is reserved with 204 and no body, counts as load, and goes as it is to the request that
// follows, whose end frees it.
func TestReserveEndpoint(t *testing.T) {
	w := start(t, reserving)
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	ids := servicetest.Prompt(1, 16)
	w.cache(1, ids[:8])
	_, r := w.post(chatPath, chat(ids, `,"stream":true`), prefer, "return=minimal, Reserve-Endpoint;x=1")
	if r.status != 204 || r.answer != "" || r.headers["content-type"] != "" || r.headers["preference-applied"] != "reserve-endpoint" ||
		r.headers[reserved] != at(2) || r.headers[prefiller] != at(1) || r.headers[reservationID] == "" {
		t.Fatalf("%+v", r)
	}
	w.wantLoads("1/0: 8 4 1; 2/0: 0 4 1")
	asked := w.tokenized.Load()
	e, p := w.post(chatPath, chat(ids, `,"stream":true`), reservationID, r.headers[reservationID])
	if p.destination != at(2) || p.headers[prefiller] != at(1) || p.body != chat(ids, `,"stream":true`) || w.tokenized.Load() != asked {
		t.Fatalf("%+v", p)
	}
	w.wantLoads("1/0: 8 4 1; 2/0: 0 4 1")
	for _, again := range []int{1, 2} { // it has been taken
		if _, p := w.post(chatPath, chat(ids, ""), reservationID, r.headers[reservationID]); p.status != 503 || !strings.Contains(p.answer, "reservation_gone") {
			t.Errorf("use %d: %+v", again, p)
		}
	}
	e.response(200, sse, false)
	for range 9 {
		e.chunk(event("a"), false)
	}
	w.wantLoads("1/0: 0 0 0; 2/0: 0 6 1")
	e.chunk("data: [DONE]\n\n", true)
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0")
	e.close()
	w.wantCount("requests_total", `outcome="reserved"`, 1)
}

// TestReservedIsNoHint: who only reserves an endpoint tells no engine where to fetch from, so that no hint counts as given.
func TestReservedIsNoHint(t *testing.T) {
	w := start(t, reserving)
	ids := servicetest.Prompt(7, 16)
	w.put(1, 1, peerAt("1"))
	w.announce(1, 0, ids)
	w.put(2, 1, peerAt("2"))
	w.load(1)
	_, r := w.post(chatPath, chat(ids, ""), prefer, "reserve-endpoint")
	if r.status != 204 || r.headers[reserved] != at(2) || r.headers[sourceHeader] != "" {
		t.Fatalf("%+v", r)
	}
	w.WantNoSeries("kv_hint")
}

// TestReservedPromisesNothing: a reservation with a target that nobody follows is no promise that was missed.
func TestReservedPromisesNothing(t *testing.T) {
	w := start(t, reserving)
	w.put(1, 1)
	w.put(2, 1)
	_, r := w.post(chatPath, chat(servicetest.Prompt(1, 16), ""), prefer, "reserve-endpoint", "x-slo-ttft-ms", "1", "x-tenant-id", "gold")
	if r.status != 204 {
		t.Fatalf("%+v", r)
	}
	answered := time.Now()
	await(t, func() string {
		if passed := time.Since(answered); passed < 2*time.Millisecond {
			return passed.String()
		}
		return ""
	})
	chosen := uint64(1)
	if r.headers[reserved] == at(2) {
		chosen = 2
	}
	w.Remove(chosen) // ends what is reserved there
	if got := w.Metrics()["promises_total"]; servicetest.Sum(got, "missed")+servicetest.Sum(got, "attained") != 0 {
		t.Errorf("counted %v", got)
	}
}

// TestCoordinator plays the requests of llm-d's coordinator for SGLang: it reserves the engine that prefills, names it in
// both bodies, pins the prefill to it, and sends the decode at the same time.
func TestCoordinator(t *testing.T) {
	w := start(t, reserving)
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	w.put(3, 1, role("prefill"))
	ids := servicetest.Prompt(1, 16)
	w.cache(3, ids[:8])
	_, r := w.post(chatPath, chat(ids, `,"max_tokens":1,"stream":false`), prefer, "reserve-endpoint", requestID, "req-1-reserve", profile, "prefill")
	if r.status != 204 || r.headers[reserved] != at(3) {
		t.Fatalf("%+v", r)
	}
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 8 4 1")
	bootstrap := `,"bootstrap_host":"10.0.0.3","bootstrap_port":8998,"bootstrap_room":7`
	body := chat(ids, `,"max_tokens":1,"stream":false`+bootstrap)
	prefill, p := w.post(chatPath, body, pin, at(3), requestID, "req-1-prefill", profile, "prefill")
	if p.destination != at(3) || p.headers[prefiller] != "" || p.body != body {
		t.Fatalf("%+v", p)
	}
	decode, p := w.post(chatPath, chat(ids, `,"stream":true`+bootstrap), requestID, "req-1", profile, "decode")
	if p.destination != at(2) || p.headers[prefiller] != "" {
		t.Fatalf("%+v", p)
	}
	w.wantLoads("1/0: 0 0 0; 2/0: 0 4 1; 3/0: 8 4 1")
	for _, name := range []string{pin, profile, reservationID} {
		if !strings.Contains(strings.Join(p.removed, " "), name) {
			t.Errorf("%s reaches the engine", name)
		}
	}
	prefill.close()
	decode.close()
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 0 0 0")
	if _, p := w.post(chatPath, body, pin, at(3), requestID, "req-2-prefill"); p.status != 503 {
		t.Errorf("a pin without a reservation: %+v", p)
	}
}

// TestReservedForOthers: only the tenant that has reserved a place can take it, only for the model, and only where the pin and the
// subset of its request allow it.
func TestReservedForOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		fields []string
		subset string
		body   string
		ok     bool
	}{
		"the same":       {fields: []string{"x-tenant-id", "a"}, ok: true},
		"another tenant": {fields: []string{"x-tenant-id", "b"}},
		"no tenant":      {},
		"another pin":    {fields: []string{"x-tenant-id", "a", pin, at(2)}},
		"the pin":        {fields: []string{"x-tenant-id", "a", pin, at(1)}, ok: true},
		"the subset":     {fields: []string{"x-tenant-id", "a"}, subset: at(1), ok: true},
		"another subset": {fields: []string{"x-tenant-id", "a"}, subset: at(2)},
		"another model":  {fields: []string{"x-tenant-id", "a"}, body: strings.Replace(chat(servicetest.Prompt(1, 16), ""), `"m"`, `"n"`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, reserving, func(_ *node.Config, c *settings) {
				c.Models = map[string]catalog.Scope{model: servicetest.Scope, "n": {Model: "n", Tenant: "t"}}
			})
			w.put(1, 1)
			w.put(9, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: "n", Tenant: "t"} })
			ids := servicetest.Prompt(1, 16)
			_, r := w.post(chatPath, chat(ids, ""), prefer, "reserve-endpoint", "x-tenant-id", "a")
			if r.status != 204 {
				t.Fatalf("%+v", r)
			}
			e := w.open()
			if tt.subset != "" {
				e.subset = structpb.NewStringValue(tt.subset)
			}
			e.request(chatPath, false, append(tt.fields, reservationID, r.headers[reservationID])...)
			if tt.body == "" {
				tt.body = chat(ids, "")
			}
			e.body(tt.body, true)
			if p := e.placement(true, false); (p.status == 0) != tt.ok || p.status != 0 && p.status != 503 {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestReservationsBounded: what nobody takes over is freed when its time is over; what somebody has taken lives on. A request that
// follows neither waits nor is refused for load: its load is there already.
func TestReservationsBounded(t *testing.T) {
	w := start(t, queueing, func(_ *node.Config, c *settings) { c.ReserveFor = 5 * time.Second })
	w.put(1, 1, fewTokens)
	ids := servicetest.Prompt(1, 16)
	var e *envoy
	await(t, func() string { // a busy machine may take longer than the reservation lasts
		_, first := w.post(chatPath, chat(ids, `,"stream":true`), prefer, "reserve-endpoint")
		if first.status != 204 {
			t.Fatalf("%+v", first)
		}
		var p placed
		e, p = w.post(chatPath, chat(ids, `,"stream":true`), reservationID, first.headers[reservationID])
		if p.status == 503 && strings.Contains(p.answer, "reservation_gone") {
			return p.answer
		}
		if p.destination != at(1) {
			t.Fatalf("%+v", p)
		}
		return ""
	})
	w.wantLoads("1/0: 16 4 1") // it was busy with this
	e.response(200, sse, false)
	e.chunk(event("a"), false)
	_, second := w.post(chatPath, chat(ids, `,"stream":true`), prefer, "reserve-endpoint")
	if second.status != 204 {
		t.Fatalf("%+v", second)
	}
	w.wantLoads("1/0: 0 4 1") // the second one has expired
	if _, p := w.post(chatPath, chat(ids, ""), reservationID, second.headers[reservationID]); p.status != 503 {
		t.Errorf("%+v", p)
	}
	e.close()
	w.wantLoads("1/0: 0 0 0")
}

// TestReservationRefused: nothing is reserved where that is switched off, for routes that are placed by load, and where there
// is no room.
func TestReservationRefused(t *testing.T) {
	ids := servicetest.Prompt(1, 16)
	for name, tt := range map[string]struct {
		change change
		path   string
		status int
		code   string
	}{
		"off":         {func(_ *node.Config, c *settings) { c.ReserveFor = 0 }, chatPath, 400, "reservations_off"},
		"other route": {reserving, "/v1/embeddings", 400, "not_reservable"},
		"full": {func(c *node.Config, s *settings) {
			reserving(c, s)
			c.Reservations.Reservations = 1
			c.Scopes.Admission = admission.Config{}
		}, chatPath, 503, "limit_reached"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, tt.change)
			w.put(1, 1)
			w.Burden("load", 1, 0, 1, 0)
			if _, p := w.post(tt.path, chat(ids, ""), prefer, "reserve-endpoint"); p.status != tt.status || !strings.Contains(p.answer, `"code":"`+tt.code+`"`) {
				t.Errorf("%+v", p)
			}
			w.wantLoads("1/0: 0 1 1")
		})
	}
}
