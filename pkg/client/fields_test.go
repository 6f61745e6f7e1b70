package client_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/api"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/client"
)

// schema is what the test reads of a schema of the API's description.
type schema struct {
	Ref        string `yaml:"$ref"`
	Type       any
	Enum       []any
	Maximum    uint64
	Required   []string
	AllOf      []*schema `yaml:"allOf"`
	OneOf      []*schema `yaml:"oneOf"`
	Properties map[string]*schema
}

// kinds says how each kind of field looks in the API's description, and in the types of both clients:
// in a registration or patch of Python, and in a record that is shown.
var kinds = map[reflect.Type]struct {
	schema, settings, record string
	goType                   reflect.Type
}{
	reflect.TypeFor[catalog.Pointer[string]]():              {"string", "str | None", "str", reflect.TypeFor[*string]()},
	reflect.TypeFor[catalog.Pointer[bool]]():                {"boolean", "bool | None", "bool", reflect.TypeFor[*bool]()},
	reflect.TypeFor[catalog.Pointer[uint32]]():              {"integer", "int | None", "int", reflect.TypeFor[*uint32]()},
	reflect.TypeFor[catalog.Pointer[uint64]]():              {"integer", "int | None", "int", reflect.TypeFor[*uint64]()},
	reflect.TypeFor[catalog.Pointer[float32]]():             {"number", "float | None", "float", reflect.TypeFor[*float32]()},
	reflect.TypeFor[catalog.Pointer[catalog.LoadMetrics]](): {"object", "LoadMetrics | None", "LoadMetrics", reflect.TypeFor[*client.LoadMetrics]()},
	reflect.TypeFor[catalog.List]():                         {"array", "Iterable[str] | None", "list[str]", reflect.TypeFor[[]string]()},
	reflect.TypeFor[catalog.Map[uint32]]():                  {"object", "Mapping[int, str] | Mapping[str, str] | None", "dict[str, str]", reflect.TypeFor[map[uint32]string]()},
	reflect.TypeFor[catalog.Map[string]]():                  {"object", "Mapping[str, str] | None", "dict[str, str]", reflect.TypeFor[map[string]string]()},
}

// TestWorkerFields: the API's description of both contracts and the types of both clients have each
// field of catalog.Fields with its kind, its words and its rules of omission.
func TestWorkerFields(t *testing.T) {
	text, err := os.ReadFile("../../clients/python/src/select_service_client/_types.py")
	if err != nil {
		t.Fatal(err)
	}
	settings, record := pythonClass(t, string(text), "WorkerSettings"), pythonClass(t, string(text), "Worker")
	golang := make(map[string]reflect.StructField)
	for f := range reflect.TypeFor[client.Worker]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		golang[name] = f
	}
	documents := map[string]schemas{"1.3": openapi(t, "1.3"), "1.6": openapi(t, "1.6")}
	registered := make(map[string]bool)
	for _, f := range catalog.Fields() {
		kind, known := kinds[reflect.TypeOf(f.Of)]
		if !known {
			t.Fatalf("%s has a kind that the test does not know", f.Name)
		}
		if !strings.HasSuffix(f.Doc, ".") {
			t.Errorf("%s has no text", f.Name)
		}
		if got := golang[f.Name].Type; got != kind.goType {
			t.Errorf("Go: %s is a %v, want %v", f.Name, got, kind.goType)
		}
		inSettings, inRecord := kind.settings, kind.record
		if f.Words != nil {
			words := `Literal["` + strings.Join(f.Words, `", "`) + `"]`
			inSettings = words + " | None"
			if !f.Dynamo {
				inRecord = words
			}
		}
		_, byRank := f.Of.(catalog.Map[uint32])
		if kind.goType.Kind() == reflect.Pointer && f.Dynamo {
			inRecord += " | None"
		}
		if f.EngineOnly {
			inSettings = ""
		}
		registered[f.Name] = !f.EngineOnly
		if settings[f.Name] != inSettings || record[f.Name] != inRecord {
			t.Errorf("Python: %s is %q in settings and %q in a record, want %q and %q", f.Name, settings[f.Name], record[f.Name], inSettings, inRecord)
		}
		for contract, all := range documents {
			for name, want := range map[string]bool{"WorkerRequest": !f.EngineOnly, "WorkerPatch": !f.EngineOnly, "WorkerV13": true, "WorkerV16": true} {
				s := all.flat(name)
				p, what := s.Properties[f.Name], "OpenAPI "+contract+": "+name+"."+f.Name
				if has := p != nil; has != want {
					t.Errorf("%s: it is there: %v, want %v", what, has, want)
				} else if has {
					p.check(t, what, all, &f, kind.schema)
				}
				if strings.HasPrefix(name, "WorkerV") && slices.Contains(s.Required, f.Name) != (f.Dynamo && !byRank) {
					t.Errorf("%s: it is required: %v", what, byRank || !f.Dynamo)
				}
			}
		}
	}
	for name := range documents["1.3"].flat("WorkerPatch").Properties {
		if !registered[name] {
			t.Errorf("OpenAPI: a patch has %s, which is no field of a worker", name)
		}
	}
	for name := range settings {
		if !registered[name] {
			t.Errorf("Python: WorkerSettings has %s, which is no field of a worker", name)
		}
	}
}

// check compares a property with a field.
func (s *schema) check(t *testing.T, what string, all schemas, f *catalog.Field, kind string) {
	t.Helper()
	for s.Type == nil && s.Enum == nil {
		switch {
		case s.Ref != "":
			s = all[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		case len(s.OneOf) > 0:
			s = s.OneOf[0]
		case len(s.AllOf) > 0:
			s = s.AllOf[0]
		default:
			t.Fatalf("%s has no type", what)
		}
	}
	if f.Words != nil {
		for _, word := range f.Words {
			if !slices.Contains(s.Enum, any(word)) {
				t.Errorf("%s lacks %q", what, word)
			}
		}
		if n := len(f.Words); len(s.Enum) != n && len(s.Enum) != n+1 {
			t.Errorf("%s has %v, want %v", what, s.Enum, f.Words)
		}
		return
	}
	if types, is := s.Type.([]any); is && types[0] != any(kind) || !is && s.Type != any(kind) {
		t.Errorf("%s is %v, want %s", what, s.Type, kind)
	}
	var most uint64
	switch f.Of.(type) {
	case catalog.Pointer[uint32]:
		most = 1<<32 - 1
	case catalog.Pointer[uint64]:
		most = 1<<64 - 1
	}
	if s.Maximum != most {
		t.Errorf("%s has the maximum %d, want %d", what, s.Maximum, most)
	}
}

type schemas map[string]*schema

func openapi(t *testing.T, contract string) schemas {
	t.Helper()
	var doc struct{ Components struct{ Schemas schemas } }
	if err := yaml.Unmarshal(api.Document(contract), &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Components.Schemas
}

// flat returns the properties of a schema and of those that it consists of.
func (all schemas) flat(name string) *schema {
	flat := &schema{Properties: make(map[string]*schema)}
	var add func(*schema)
	add = func(s *schema) {
		if s.Ref != "" {
			s = all[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		}
		for name, p := range s.Properties {
			flat.Properties[name] = p
		}
		flat.Required = append(flat.Required, s.Required...)
		for _, part := range s.AllOf {
			add(part)
		}
	}
	add(all[name])
	return flat
}

var pythonMember = regexp.MustCompile(`(?m)^    (\w+): (.+)$`)

// pythonClass returns the types of the members of a TypedDict.
func pythonClass(t *testing.T, text, name string) map[string]string {
	t.Helper()
	_, body, found := strings.Cut(text, "\nclass "+name+"(")
	if !found {
		t.Fatalf("there is no class %s", name)
	}
	body, _, _ = strings.Cut(body, "\nclass ")
	members := make(map[string]string)
	for _, m := range pythonMember.FindAllStringSubmatch(body, -1) {
		members[m[1]] = m[2]
	}
	return members
}

// TestEngines: the descriptions of the API and the Python client name the engines of the catalog.
func TestEngines(t *testing.T) {
	words := strings.Join(catalog.Engines(), ", ")
	for file, want := range map[string][]string{
		"../../api/source.yaml": {"enum: [true, false, " + words + "]", "engine: { enum: [" + words + "] }", "enum: [true, " + words + "] }"},
		"../../clients/python/src/select_service_client/_types.py": {`bool | Literal["` + strings.Join(catalog.Engines(), `", "`) + `"]`},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s does not have %s", file, w)
			}
		}
	}
}
