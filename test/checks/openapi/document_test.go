package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

var contracts = []string{"1.3", "1.6"}

func load(tb testing.TB, contract string) *Validator {
	tb.Helper()
	v, err := Load(contract)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// inEach runs a test on the document of each contract.
func inEach(t *testing.T, test func(t *testing.T, v *Validator)) {
	for _, contract := range contracts {
		t.Run(contract, func(t *testing.T) { test(t, load(t, contract)) })
	}
}

// each calls f with every operation, in order.
func (d *document) each(f func(method string, op *operation)) {
	for _, method := range slices.Sorted(maps.Keys(d.operations)) {
		for i := range d.operations[method] {
			f(method, &d.operations[method][i])
		}
	}
}

// walk visits an object and all below it, through references, once each.
func (d *document) walk(o object, at pointer, visit func(o object, at pointer)) {
	seen := map[string]bool{}
	var step func(v any, at pointer)
	step = func(v any, at pointer) {
		switch v := v.(type) {
		case object:
			if seen[at.fragment()] {
				return
			}
			seen[at.fragment()] = true
			visit(v, at)
			if v["$ref"] != nil {
				target, place := d.resolve(object{"$ref": v["$ref"]}, at)
				step(target, place)
			}
			for key, member := range v {
				if key != "example" && key != "examples" {
					step(member, at.at(key))
				}
			}
		case []any:
			for i, item := range v {
				step(item, at.at(fmt.Sprint(i)))
			}
		}
	}
	step(o, at)
}

// TestVersions proves that only the two contracts have a document, and that each
// says which.
func TestVersions(t *testing.T) {
	for _, contract := range contracts {
		d := load(t, contract).doc
		if got := d.member(d.root, "info")["version"]; got != contract {
			t.Errorf("the document of %s has version %v", contract, got)
		}
	}
	if _, err := Load("1.4"); err == nil {
		t.Error("there is a document of 1.4")
	}
}

// TestPrefixes proves that both prefixes have every operation of the contract but
// those that have no dialect, that the unprefixed ones are those of the contract,
// and that no two operations have the same name.
func TestPrefixes(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		named := map[string]string{} // operations by id
		paths := map[string]*operation{}
		v.doc.each(func(method string, op *operation) {
			at := method + " " + strings.Join(op.path, "/")
			if op.id == "" || named[op.id] != "" {
				t.Errorf("%s has the name %q of %s", at, op.id, named[op.id])
			}
			named[op.id], paths[at] = at, op
		})
		own := map[string]string{"1.3": "V13", "1.6": "V16"}[v.doc.member(v.doc.root, "info")["version"].(string)]
		for id, at := range named {
			path := at[strings.Index(at, "/"):]
			if strings.HasPrefix(path, "/v1.") || strings.HasPrefix(path, "/conductor/") || path == "/metrics" || path == "/openapi.yaml" || path == "/kubernetes" || path == "/replica_sync/status" {
				continue
			}
			for prefix, suffix := range map[string]string{"/v1.3": "V13", "/v1.6": "V16"} {
				want := strings.Replace(at, "/", prefix+"/", 1)
				if named[id+suffix] != want {
					t.Errorf("%s%s is %s, want %s", id, suffix, named[id+suffix], want)
				} else if a, b := text(t, paths[at].responses), text(t, paths[want].responses); suffix == own && a != b {
					t.Errorf("%s and %s have different answers", at, want)
				}
			}
		}
	})
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestClosed proves that every object of an answer is closed: it says what
// members there are, and allows no other. An object that is part of another one
// (allOf) is closed there.
func TestClosed(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		parts := map[string]bool{}
		check := func(o object, at pointer) {
			for i, part := range list(o["allOf"]) {
				_, place := v.doc.resolve(part.(object), at.at("allOf", fmt.Sprint(i)))
				parts[place.fragment()] = true
				parts[at.at("allOf", fmt.Sprint(i)).fragment()] = true
			}
		}
		open := map[string]bool{}
		closed := func(o object, at pointer) {
			isObject := o["properties"] != nil || slices.Contains(types(o), "object") || o["allOf"] != nil
			if isObject && o["additionalProperties"] == nil && o["unevaluatedProperties"] == nil && at[len(at)-1] != "properties" {
				open[at.fragment()] = true
			}
		}
		v.doc.each(func(_ string, op *operation) {
			v.doc.walk(op.responses, op.pointer.at("responses"), check)
			v.doc.walk(op.responses, op.pointer.at("responses"), closed)
		})
		for place := range open {
			if !parts[place] {
				t.Errorf("%s is an object of an answer and open", place)
			}
		}
	})
}

// TestOpenRequests proves that requests may have members which nobody knows.
func TestOpenRequests(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		v.doc.each(func(_ string, op *operation) {
			if op.body == nil {
				return
			}
			v.doc.walk(op.body, op.pointer.at("requestBody"), func(o object, at pointer) {
				if o["additionalProperties"] == false || o["unevaluatedProperties"] == false {
					t.Errorf("%s: %s is closed", op.id, at.fragment())
				}
			})
		})
	})
}

// TestFaultsOfBodies proves that operations with a body have the statuses of its
// faults and others have not; for the Conductor all are 400 (decision C3).
func TestFaultsOfBodies(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		v.doc.each(func(_ string, op *operation) {
			for _, status := range []string{"400", "413", "415", "422"} {
				want := op.body != nil && (status == "400" || status == "413" || op.path[1] != "conductor")
				if got := op.responses[status] != nil; got != want && (status != "400" || want) {
					t.Errorf("%s: %s is described: %t, want %t", op.id, status, got, want)
				}
			}
		})
	})
}

// TestIntegers proves that integers have their range: code that is generated
// without one takes 32 bits.
func TestIntegers(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		v.doc.walk(v.doc.root, pointer{}, func(o object, at pointer) {
			if slices.Contains(types(o), "integer") && (o["minimum"] == nil || o["maximum"] == nil) {
				t.Errorf("%s has no range", at.fragment())
			}
		})
	})
}

// TestExamples proves that every example is what its schema says.
func TestExamples(t *testing.T) {
	inEach(t, func(t *testing.T, v *Validator) {
		count := 0
		check := func(at pointer, example any) {
			count++
			if err := v.schemas.checkJSON(at, []byte(text(t, example))); err != nil {
				t.Errorf("example at %s: %v", at.fragment(), err)
			}
		}
		v.doc.walk(v.doc.root, pointer{}, func(o object, at pointer) {
			schema := at
			if o["schema"] != nil {
				schema = at.at("schema")
			}
			if example, ok := o["example"]; ok {
				check(schema, example)
			}
			switch examples := o["examples"].(type) {
			case object:
				for _, named := range examples {
					check(schema, named.(object)["value"])
				}
			case []any:
				for _, example := range examples {
					check(schema, example)
				}
			}
		})
		if count == 0 {
			t.Error("no examples")
		}
	})
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func types(schema object) []string {
	var names []string
	switch t := schema["type"].(type) {
	case string:
		names = append(names, t)
	case []any:
		for _, name := range t {
			if name, ok := name.(string); ok {
				names = append(names, name)
			}
		}
	}
	return names
}
