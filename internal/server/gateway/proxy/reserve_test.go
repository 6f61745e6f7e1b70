package proxy_test

import (
	"slices"
	"testing"
	"time"
)

// TestReserveEndpoint: a reservation is answered as llm-d's endpoint picker does (its plugin reserve-endpoint), with no body
// and on a connection that goes on; the request that follows goes to the reserved pair.
func TestReserveEndpoint(t *testing.T) {
	w := start(t, func(s *settings) { s.ReserveFor = time.Minute })
	decode, prefill, got := startPair(t, w)
	c := w.dial()
	c.send(request(chatPath, chatBody(""), "Prefer", "reserve-endpoint"))
	a := c.receive("POST")
	id := a.Header.Get("X-Select-Reservation-Id")
	if a.StatusCode != 204 || a.Header.Get("Preference-Applied") != "reserve-endpoint" || a.Header.Get("X-Llm-D-Reserved-Host-Port") != decode.address ||
		a.Header.Get("X-Prefiller-Host-Port") != prefill.address || id == "" || a.Header["Content-Type"] != nil || a.Header["Content-Length"] != nil || a.body != "" {
		t.Fatalf("%d %v %q", a.StatusCode, a.Header, a.body)
	}
	w.wantLoads("1:1 2:1")
	c.send(request(chatPath, chatBody(""), "X-Select-Reservation-Id", id))
	if a := c.receive("POST"); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if r := <-got; !slices.Equal(r.Header["X-Prefiller-Host-Port"], []string{prefill.address}) || r.Header["X-Select-Reservation-Id"] != nil {
		t.Errorf("%v", r.Header)
	}
	w.wantLoads("1:0 2:0")
}
