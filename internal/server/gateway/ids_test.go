package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// idsOf writes token ids as JSON.
func idsOf(ids []uint32) string { return strings.ReplaceAll(fmt.Sprint(ids), " ", ",") }

// TestPlacedByIDs: a body with the token ids of one prompt is placed where they are cached and is
// booked by them, whatever its route; other bodies count as one request.
func TestPlacedByIDs(t *testing.T) {
	ids := servicetest.Prompt(1, 16)
	list, longer := idsOf(ids), idsOf(append(servicetest.Prompt(9, 16), ids...))
	for name, tt := range map[string]struct {
		path, body string
		loads      string // of worker 2, which has the prompt; "": not by tokens
	}{
		"vLLM's generate":         {"/inference/v1/generate", `{"model":"m","token_ids":` + list + `,"sampling_params":{}}`, "4 4 1"},
		"without a model":         {"/inference/v1/generate", `{"token_ids":` + list + `}`, "4 4 1"},
		"SGLang's generate":       {"/generate", `{"input_ids":` + list + `}`, "4 4 1"},
		"a batch of one":          {"/generate", `{"input_ids":[` + list + `]}`, "4 4 1"},
		"embeddings":              {"/v1/embeddings", `{"model":"m","input":` + list + `}`, "4 4 1"},
		"shortened":               {"/v1/embeddings", `{"model":"m","truncate_prompt_tokens":16,"input":` + longer + `}`, "4 4 1"},
		"not shortened there":     {"/inference/v1/generate", `{"token_ids":` + list + `,"truncate_prompt_tokens":4}`, "4 4 1"},
		"a batch":                 {"/generate", `{"input_ids":[` + list + `,[1]]}`, ""},
		"with an image":           {"/generate", `{"input_ids":` + list + `,"image_data":["x"]}`, ""},
		"what only an engine may": {"/v1/embeddings", `{"model":"m","input":[1,"x"]}`, ""},
		"a salt too long here":    {"/inference/v1/generate", `{"token_ids":` + list + `,"cache_salt":"` + strings.Repeat("x", 200) + `"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.put(1, 1)
			w.put(2, 1)
			w.cache(2, ids[:12])
			first, _ := w.post(completionsPath, `{"model":"m","prompt":`+list+`}`) // worker 2 has more load than worker 1
			e, p := w.post(tt.path, tt.body)
			if p.body != tt.body {
				t.Errorf("the engine gets %s", p.body)
			}
			first.close()
			if tt.loads == "" {
				w.wantLoads("1/0: 0 0 1; 2/0: 0 0 0")
			} else {
				w.wantLoads("1/0: 0 0 0; 2/0: " + tt.loads)
			}
			e.response(200, sse, false)
			e.chunk("data: {\"choices\":[{\"token_ids\":[1]}]}\n\n", false)
			if tt.loads != "" {
				w.wantLoads("1/0: 0 0 0; 2/0: 0 4 1")
				e.chunk(strings.Repeat("data: {\"choices\":[{\"token_ids\":[1]}]}\n\n", 4), false)
				w.wantLoads("1/0: 0 0 0; 2/0: 0 5 1")
			}
			e.chunk("data: [DONE]\n\n", true)
			w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0")
			e.close()
		})
	}
}

// TestIDsOfTenants: the tenant's salt counts for token ids as for chats, here and in the engine.
func TestIDsOfTenants(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(1, 16)
	w.cache(1, ids)
	body := `{"token_ids":` + idsOf(ids) + `}`
	e, p := w.post("/inference/v1/generate", body, "x-tenant-id", "a")
	if want := `{"cache_salt":"a",` + body[1:]; p.body != want {
		t.Errorf("the engine gets %s", p.body)
	}
	w.wantLoads("1/0: 16 4 1") // the cached copy has no salt
	e.close()
}

// TestIDsDecoded: sidecars split up the four routes only, so that a worker that decodes computes
// such a prompt alone.
func TestIDsDecoded(t *testing.T) {
	w := start(t)
	w.put(1, 1, func(r *catalog.Record) { r.Role = new(catalog.RolePrefill) })
	w.put(2, 1, func(r *catalog.Record) { r.Role = new(catalog.RoleDecode) })
	e, p := w.post("/inference/v1/generate", `{"token_ids":`+idsOf(servicetest.Prompt(1, 16))+`}`)
	if p.destination != at(2) || p.headers["x-prefiller-host-port"] != "" {
		t.Errorf("%+v", p)
	}
	w.wantLoads("1/0: 0 0 0; 2/0: 16 4 1")
	e.close()
}

// TestIDsWithoutMemory: where there is no memory for the ids of a large body, it is placed all the
// same, as one request.
func TestIDsWithoutMemory(t *testing.T) {
	budget := memory.New(4 << 20)
	serving := budget.Account(memory.Serving)
	w := start(t, func(_ *node.Config, c *settings) { c.Memory = budget })
	w.put(1, 1)
	e, _ := w.post("/generate", `{"input_ids":[`+strings.Repeat("1,", int(serving.Limit())/8)+`1]}`)
	w.wantLoads("1/0: 0 0 1")
	e.close()
	e, _ = w.post("/generate", `{"input_ids":[`+strings.Repeat("1,", memory.SmallBody)+`1]}`)
	if w.wantLoads(fmt.Sprintf("1/0: %d %d 1", memory.SmallBody+1, memory.SmallBody/4)); serving.Used() > 0 {
		t.Errorf("%d bytes are in use", serving.Used())
	}
	e.close()
}
