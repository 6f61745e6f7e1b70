package httpapi

import (
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
				if _, ok := op.Responses[status]; ok != (op.RequestBody != nil) {
					t.Errorf("%s: answer %s is described: %t, the request has a body: %t", name, status, ok, op.RequestBody != nil)
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
