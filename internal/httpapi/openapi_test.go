package httpapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"
)

type openAPI struct {
	Paths map[string]map[string]struct {
		OperationID string                    `yaml:"operationId"`
		RequestBody any                       `yaml:"requestBody"`
		Responses   map[string]map[string]any `yaml:"responses"`
	} `yaml:"paths"`
	Components map[string]map[string]any `yaml:"components"`
}

// TestOpenAPI: the description and the routes are the same set, every reference
// leads somewhere, and routes with a body describe the faults of a body.
func TestOpenAPI(t *testing.T) {
	text, err := os.ReadFile("../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The paths' own parameters are no operations.
	text = regexp.MustCompile(`(?m)^    parameters:\n(      - .*\n)+`).ReplaceAll(text, nil)
	var spec openAPI
	if err := yaml.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}

	var described, registered []string
	ids := map[string]bool{}
	for path, operations := range spec.Paths {
		for method, op := range operations {
			name := strings.ToUpper(method) + " " + path
			described = append(described, name)
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s: operationId %q is empty or taken", name, op.OperationID)
			}
			ids[op.OperationID] = true
			for _, status := range []string{"413", "415", "422"} {
				want := op.RequestBody != nil
				if status != "413" && strings.HasPrefix(path, conductorPrefix+"/") {
					want = false // there all faults of a body are 400
				}
				if _, ok := op.Responses[status]; ok != want {
					t.Errorf("%s: answer %s is described: %t, want %t", name, status, ok, want)
				}
			}
		}
	}
	param := regexp.MustCompile(`:(\w+)`)
	routes := func(e *gin.Engine, prefix string) (names []string) {
		for _, r := range e.Routes() {
			if r.Method != http.MethodHead {
				names = append(names, r.Method+" "+prefix+param.ReplaceAllString(r.Path, "{$1}"))
			}
		}
		return names
	}
	registered = routes(newEngine(&fake{}, Options{Log: zerolog.Nop(), Metrics: http.NotFoundHandler()}), "")
	// The slot tracker's own listener has its routes without their prefix.
	for _, name := range routes(newSlotsEngine(&fake{}, Options{Log: zerolog.Nop()}), "/slots") {
		if !slices.Contains(registered, name) && !slices.Contains(registered, strings.Replace(name, "/slots", "", 1)) {
			t.Errorf("%s is on the slot tracker's listener only", name)
		}
	}
	// The Conductor's listener has just the routes below the prefix.
	var prefixed []string
	for _, name := range registered {
		if _, path, _ := strings.Cut(name, " "); strings.HasPrefix(path, conductorPrefix+"/") {
			prefixed = append(prefixed, name)
		}
	}
	own := routes(newConductorEngine(&fake{}, Options{Log: zerolog.Nop()}), conductorPrefix)
	slices.Sort(own)
	if slices.Sort(prefixed); !slices.Equal(own, prefixed) {
		t.Errorf("the Conductor's listener has %q, below the prefix are %q", own, prefixed)
	}
	slices.Sort(described)
	slices.Sort(registered)
	if !slices.Equal(described, registered) {
		t.Errorf("described  %q\nregistered %q", described, registered)
	}

	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`\$ref: "#/components/(\w+)/(\w+)"`).FindAllSubmatch(text, -1) {
		kind, name := string(m[1]), string(m[2])
		if _, ok := spec.Components[kind][name]; !ok {
			t.Errorf("nothing is at #/components/%s/%s", kind, name)
		}
		used[kind+"/"+name] = true
	}
	for kind, named := range spec.Components {
		for name := range maps.Keys(named) {
			if kind != "parameters" && !used[kind+"/"+name] { // parameters were cut out above
				t.Errorf("#/components/%s/%s is not used", kind, name)
			}
		}
	}
}

// TestConductorExamples: the Conductor's routes accept every body that the
// description gives as an example.
func TestConductorExamples(t *testing.T) {
	text, err := os.ReadFile("../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type content struct {
		Example  map[string]any
		Examples map[string]struct{ Value map[string]any }
	}
	var spec struct {
		Paths map[string]struct {
			Post struct {
				RequestBody struct{ Content map[string]content } `yaml:"requestBody"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	h := newHandler(&fake{})
	routes := 0
	for path, operations := range spec.Paths {
		c, ok := operations.Post.RequestBody.Content["application/json"]
		if !ok || !strings.HasPrefix(path, conductorPrefix+"/") {
			continue
		}
		routes++
		bodies := []map[string]any{c.Example}
		for _, example := range c.Examples {
			bodies = append(bodies, example.Value)
		}
		for _, example := range bodies {
			if example == nil && len(bodies) > 1 {
				continue
			}
			body, err := json.Marshal(example)
			if err != nil {
				t.Fatal(err)
			}
			if w := call(t, h, "POST", path, string(body), nil); w.Code != 200 {
				t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
			}
		}
	}
	if routes != 5 {
		t.Errorf("%d routes have bodies with examples, want 5", routes)
	}
}
