package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestGenerated proves that the documents in the repository are those of their
// source.
func TestGenerated(t *testing.T) {
	source, err := os.ReadFile("../../source.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dialects {
		want, err := document(source, d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("../..", d.file))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("api/%s is not up to date: go generate ./api", d.file)
		}
	}
	for file, rewrite := range clients {
		got, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		want, err := rewrite(string(got))
		if err != nil || string(got) != want {
			t.Errorf("%s is not up to date: go generate ./api (%v)", file, err)
		}
	}
}

// TestMembers proves that members that are there stay in their order with what is between them, and that a
// new one comes behind the one before it in the table.
func TestMembers(t *testing.T) {
	const text = "type T struct {\n\tID int `json:\"id\"`\n\n\t// old\n\tReplay *int `json:\"replay_endpoint\"`\n\tEnd any `json:\"endpoint,omitempty\"` // old\n\t// own\n\tX int\n}\n"
	declared := func(f *catalog.Field) string {
		switch f.Name {
		case "endpoint", catalog.FieldKVEventsEndpoint, catalog.FieldReplayEndpoint:
			return "\t" + f.Name + "\n"
		}
		return ""
	}
	const want = "type T struct {\n\tID int `json:\"id\"`\n\n\treplay_endpoint\n\tendpoint\n\tkv_events_endpoint\n\t// own\n\tX int\n}\n"
	got, err := withMembers(text, "type T struct {\n", "\n}\n", goMember, declared)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	if _, err := withMembers(text, "type U struct {\n", "\n}\n", goMember, declared); err == nil {
		t.Error("a type that is not there is no fault")
	}
}

const small = `
info: {version@1.3: a, version@1.6: b}
paths:
  /w:
    parameters:
      - $ref: "#/components/parameters/id"
    get:
      operationId: list
      x-role: read
      responses: {"200": {$ref: "#/components/responses/List"}, "429@1.6": {$ref: "#/components/responses/Full"}}
  /m:
    x-unprefixed: true
    get: {operationId: metrics, x-role: public, responses: {}}
components:
  parameters:
    id: {name: id}
  responses:
    List: {schema: {$ref: "#/components/schemas/Outer"}}
    Full@1.6: {description: full}
    Unauthorized: {description: no token}
    Forbidden: {description: no role}
    TooManyFailures: {description: too many}
  schemas:
    Outer: {properties: {inner: {$ref: "#/components/schemas/Inner"}, id: {$ref: "#/components/schemas/ID"}}}
    Inner: {required: [tenant_id@1.3, routing_group@1.6, x]}
    ID: {type: string}
`

const small16 = header + `info: {version: b}
paths:
  /w:
    parameters:
      - $ref: "#/components/parameters/id"
    get:
      operationId: list
      x-role: read
      responses: {"200": {$ref: "#/components/responses/ListV16"}, "401": {$ref: "#/components/responses/Unauthorized"}, "403": {$ref: "#/components/responses/Forbidden"}, "429": {$ref: "#/components/responses/Full"}}
      security: [{bearer: [read]}, {mutualTLS: [read]}]
  /m:
    get: {operationId: metrics, x-role: public, responses: {"401": {$ref: "#/components/responses/Unauthorized"}, "403": {$ref: "#/components/responses/Forbidden"}, "429": {$ref: "#/components/responses/TooManyFailures"}}, security: []}
  /v1.3/w:
    parameters:
      - $ref: "#/components/parameters/id"
    get:
      operationId: listV13
      x-role: read
      responses: {"200": {$ref: "#/components/responses/ListV13"}, "401": {$ref: "#/components/responses/Unauthorized"}, "403": {$ref: "#/components/responses/Forbidden"}, "429": {$ref: "#/components/responses/TooManyFailures"}}
      security: [{bearer: [read]}, {mutualTLS: [read]}]
  /v1.6/w:
    parameters:
      - $ref: "#/components/parameters/id"
    get:
      operationId: listV16
      x-role: read
      responses: {"200": {$ref: "#/components/responses/ListV16"}, "401": {$ref: "#/components/responses/Unauthorized"}, "403": {$ref: "#/components/responses/Forbidden"}, "429": {$ref: "#/components/responses/Full"}}
      security: [{bearer: [read]}, {mutualTLS: [read]}]
components:
  parameters:
    id: {name: id}
  responses:
    ListV13: {schema: {$ref: "#/components/schemas/OuterV13"}}
    Unauthorized: {description: no token}
    Forbidden: {description: no role}
    TooManyFailures: {description: too many}
    ListV16: {schema: {$ref: "#/components/schemas/OuterV16"}}
    Full: {description: full}
  schemas:
    OuterV13: {properties: {inner: {$ref: "#/components/schemas/InnerV13"}, id: {$ref: "#/components/schemas/ID"}}}
    InnerV13: {required: [tenant_id, x]}
    ID: {type: string}
    OuterV16: {properties: {inner: {$ref: "#/components/schemas/InnerV16"}, id: {$ref: "#/components/schemas/ID"}}}
    InnerV16: {required: [routing_group, x]}
`

// TestDocument proves what a version behind a key does, and that whatever refers
// to something of one dialect is of this dialect itself.
func TestDocument(t *testing.T) {
	got, err := document([]byte(small), dialects[1])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(small16, string(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestFaultySources proves that a reference into nothing is found, also if only
// one dialect has it.
func TestFaultySources(t *testing.T) {
	for _, c := range []struct{ name, source, want string }{
		{"no YAML", "[", "yaml"},
		{"empty", "", "the source is empty"},
		{"no components", "paths: {/a: {}}", "the source has no components"},
		{
			"an operation without a role", "paths: {/a: {get: {responses: {}}}}\ncomponents: {schemas: {B: {}}}",
			"line 1: get /a has no x-role or no responses",
		},
		{"no such component", "paths: {/a: {$ref: '#/components/schemas/A'}}\ncomponents: {schemas: {B: {}}}", "nothing is at #/components/schemas/A"},
		{
			"no such component in a dialect",
			"paths: {/a: {$ref: '#/components/schemas/A'}}\ncomponents: {schemas: {A@1.6: {}, B: {}}}",
			"nothing is at #/components/schemas/A in dialect 1.3",
		},
		{
			"no such component for a component",
			"paths: {/a: {}}\ncomponents: {schemas: {A: {$ref: '#/components/schemas/B'}}}", "nothing is at #/components/schemas/B",
		},
		{
			"no such place of fields", "paths: {/a: {}}\ncomponents: {schemas: {A: {properties: {x-worker-fields: here}}}}",
			"line 2: here has no fields of workers",
		},
		{"foreign reference", "paths: {/a: {$ref: 'other.yaml'}}\ncomponents: {schemas: {A: {}}}", "unexpected reference other.yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := document([]byte(c.source), dialects[0])
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
