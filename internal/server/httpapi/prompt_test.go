package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestScannedPrompts: a service that has read a prompt before asks for the same selections, and finds
// the same faults, as one that keeps nothing of prompts. A prompt is known only to the same model,
// tenant and salt, wherever these stand in the body.
func TestScannedPrompts(t *testing.T) {
	length.Sequential(t)
	cache := NewScanned(8<<20, nil)
	f := &fake{selection: selection.Selection{ReservationID: ptr("r"), Scope: defaultScope, Endpoint: "http://w:8000"}}
	handler := func(c *bodyscan.Cache) http.Handler {
		return New(f, f.conductor(), Options{Log: zerolog.Nop(), Memory: NewMemory(memory.New(1<<30), nil, c)})
	}
	keeps, plain := handler(cache), handler(nil)
	tokens := []byte(`"token_ids":[1`)
	for i := range 20_000 {
		tokens = strconv.AppendInt(append(tokens, ", "...), int64(i*7919%130_000), 10)
	}
	tokens = append(tokens, ']')
	for _, path := range []string{"/select", "/v1.6/select_and_reserve", "/reservations", "/overlap_scores", "/potential_loads"} {
		for _, body := range []struct {
			head, tail string
			known      bool // after the bodies of the same path before it
		}{
			{`"model_name":"` + path + `",`, ``, false},
			{``, `,"model_name":"` + path + `"`, true},
			{``, `,"model_name":"` + path + `","tenant_id":"t"`, false},
			{`"cache_salt":"s",`, `,"model_name":"` + path + `"`, false},
			{``, `,"model_name":"` + path + `","cache_salt":"s","lora_name":"l"`, true},
			{`"model_name":"` + path + `",`, `,"lora_name":7`, false},
			{`"model_name":"` + path + `",`, `,"token_ids":[]`, false},
			{`"model_name":"` + path + `","token_ids":[7,"]",` + string(tokens[len(`"token_ids":[`):]) + `,`, `]}`, false},
		} {
			text := string(slices.Concat([]byte(`{"worker_id":1,"dp_rank":0,"reservation_id":"r",`), []byte(body.head), tokens, []byte(body.tail), []byte("}")))
			want := call(t, plain, http.MethodPost, path, text, nil)
			asked := f.lastRequests(t)
			before, _ := cache.Bytes()
			got := call(t, keeps, http.MethodPost, path, text, nil)
			known, _ := cache.Bytes()
			name := fmt.Sprintf("%s {%.60s…%s}", path, body.head, body.tail)
			again := f.lastRequests(t)
			if got.Code/100 != 2 {
				again = asked // it was not asked
			}
			if got.Code != want.Code || got.Body.String() != want.Body.String() || again != asked {
				t.Errorf("%s: %d %s, without a cache %d %s", name, got.Code, got.Body, want.Code, want.Body)
			}
			if (known > before) != body.known {
				t.Errorf("%s: %d bytes were known", name, known-before)
			}
		}
	}
}

// TestScannedLeavesRoom: a cache of token ids takes at most four fifths of its account, so that it
// never fills it, and is none if that is too little for one set of pieces, 66 KB.
func TestScannedLeavesRoom(t *testing.T) {
	for limit, want := range map[int64]bool{1000: false, 80_000: false, 90_000: true} {
		if got := NewScanned(1<<20, memory.NewAccount("scanned", limit)) != nil; got != want {
			t.Errorf("with an account of %d bytes: %t", limit, got)
		}
	}
	if NewScanned(1000, nil) != nil {
		t.Error("a cache of 1,000 bytes")
	}
}
