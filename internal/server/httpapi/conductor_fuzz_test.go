package httpapi

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
)

// conductorSeeds are good bodies by route.
var conductorSeeds = []struct{ path, body string }{
	{"/register", `{"endpoint":"tcp://a:1","replay_endpoint":"tcp://a:2","type":"vLLM","modelname":"m","lora_name":"l","tenant_id":"t",` +
		`"instance_id":"i","block_size":4,"dp_rank":0,"additionalsalt":"s","hash_seed":1337}`},
	{"/unregister", `{"instance_id":"i","tenant_id":"t","type":"SGLang","modelname":"m","lora_name":"","additionalsalt":"s","endpoint":"e","replay_endpoint":"r","block_size":4,"dp_rank":0,"hash_seed":7}`},
	{"/query", `{"model":"m","lora_id":null,"lora_name":"l","tenant_id":"t","instance_id":"i","cache_salt":"s","block_size":4,"token_ids":[1,2,3,4]}`},
	{"/query_by_hash", `{"model":"m","lora_id":7,"block_size":4,"seq_hashes":[-1,18446744073709551615]}`},
	{"/query_by_hash", `{"model":"m","block_size":4,"block_hash":[1],"seq_hashes":null}`},
	{"/diagnose", `{"model":"m","block_size":4,"token_ids":[1],"max_blocks":3}`},
	{"/diagnose", `{"model":"m","block_size":4,"seq_hashes":[1]}`},
}

// FuzzConductorBodies: whatever body comes to a route, the answer is JSON, a
// refusal has the contract's form and status, only values in range reach the
// service, and the next body is read as if it were the first.
func FuzzConductorBodies(f *testing.F) {
	for i, seed := range conductorSeeds {
		for _, body := range []string{seed.body, seed.body[:len(seed.body)-1], `{}`, `[]`, ``, `{"x":{"y":[1e5,"\u00e9"]}}`} {
			f.Add(uint8(i), []byte(body))
		}
	}
	const after = `{"model":"m","block_size":4,"token_ids":[5]}`
	wanted := conductor.Query{Identity: conductor.Identity{Tenant: "default", Model: "m", BlockSize: 4}, Tokens: []uint32{5}}
	fk := &fake{conductorFake: conductorFake{answer: hits(), removed: []string{"i|default|0"}, diagnosis: diagnosis()}}
	h := NewConductor(fk.conductor(), Options{Log: zerolog.Nop()})
	f.Fuzz(func(t *testing.T, route uint8, text []byte) {
		fk.registered = conductor.Registration{Instance: "i", Identity: conductor.Identity{Tenant: "t", Model: "m", BlockSize: 1}}
		fk.unregistered = conductor.Filter{Instance: "i", Tenant: "t"}
		path := conductorSeeds[int(route)%len(conductorSeeds)].path
		w := call(t, h, "POST", path, string(text), http.Header{})
		if !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %q: %s", path, text, w.Body)
		}
		if w.Code != 200 {
			if got := problemIn(t, w); w.Code != 400 && w.Code != 413 || got.Reason == reasonInternal {
				t.Fatalf("%s %q: %d %+v", path, text, w.Code, got)
			}
		}
		if reg := fk.registered; reg.Tenant == "" || reg.Model == "" || reg.Instance == "" || reg.BlockSize-1 > 1<<31-2 {
			t.Fatalf("%s %q registers %+v", path, text, reg)
		}
		if by := fk.unregistered; by.Tenant == "" || by.Instance == "" {
			t.Fatalf("%s %q removes %+v", path, text, by)
		}
		for _, next := range []string{"/query", "/diagnose"} {
			if w := call(t, h, "POST", next, after, nil); w.Code != 200 {
				t.Fatalf("after %s %q: %d %s", path, text, w.Code, w.Body)
			}
			if got := fk.asked; got.Identity != wanted.Identity || got.Instance != "" || got.ByHash || len(got.Hashes) > 0 || len(got.Tokens) != 1 || got.Tokens[0] != 5 {
				t.Fatalf("%s %q left something behind: %+v", path, text, got)
			}
		}
	})
}
