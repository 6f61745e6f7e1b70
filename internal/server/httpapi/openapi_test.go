package httpapi

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	openapi "github.com/select-service/select-service/api"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/replicastatus"
)

// described lists the operations of a document as "METHOD path".
func described(t *testing.T, contract contract.Version) (names []string) {
	t.Helper()
	var spec struct {
		Paths map[string]map[string]any
	}
	if err := yaml.Unmarshal(openapi.Document(contract.String()), &spec); err != nil {
		t.Fatal(err)
	}
	methods := []string{"get", "put", "post", "patch", "delete"}
	for path, members := range spec.Paths {
		for member := range members {
			if slices.Contains(methods, member) {
				names = append(names, strings.ToUpper(member)+" "+path)
			}
		}
	}
	slices.Sort(names)
	return names
}

var routeParam = regexp.MustCompile(`:(\w+)`)

// routesOf lists the routes of a listener in the same form; rename says where
// the selection service has them.
func routesOf(e engine, rename func(path string) string) (names []string) {
	for _, r := range e.Routes() {
		if r.Method != http.MethodHead {
			names = append(names, r.Method+" "+rename(routeParam.ReplaceAllString(r.Path, "{$1}")))
		}
	}
	slices.Sort(names)
	return names
}

// TestOpenAPI: for every contract, the description and the routes are the same
// set, and the listeners of their own have nothing that the selection service has
// not.
func TestOpenAPI(t *testing.T) {
	for _, contract := range []contract.Version{contract.V13, contract.V16} {
		opt := Options{Log: zerolog.Nop(), Contract: contract}
		withMetrics := opt
		withMetrics.Metrics = http.NotFoundHandler()
		want := described(t, contract)
		if diff := cmp.Diff(want, routesOf(newEngine(&fake{}, (&fake{}).conductor(), withMetrics), func(path string) string { return path })); diff != "" {
			t.Errorf("%s (-described +routes):\n%s", contract, diff)
		}

		// The slot tracker's own listener has its routes without their prefix.
		slots := routesOf(newSlotsEngine(&fake{}, opt), func(path string) string {
			version := ""
			for _, d := range dialects {
				if rest, ok := strings.CutPrefix(path, d.prefix()); ok {
					version, path = d.prefix(), rest
				}
			}
			if strings.HasPrefix(path, "/replica_sync/") {
				return version + path
			}
			return version + slotsPrefix + path
		})
		equal(t, "slots", slots, matching(want, func(path string) bool {
			return strings.Contains(path, slotsPrefix+"/") || strings.Contains(path, "/replica_sync/") && path != replicastatus.Path
		}))

		// The Conductor's listener has just the routes below the prefix.
		own := routesOf(newConductorEngine((&fake{}).conductor(), opt), func(path string) string { return conductorPrefix + path })
		equal(t, "conductor", own, matching(want, func(path string) bool { return strings.HasPrefix(path, conductorPrefix+"/") }))
	}
}

// matching are the operations whose path is wanted.
func matching(operations []string, wanted func(path string) bool) (out []string) {
	for _, op := range operations {
		if _, path, _ := strings.Cut(op, " "); wanted(path) {
			out = append(out, op)
		}
	}
	return out
}

// TestOpenAPIRoles: the description has the role of every operation.
func TestOpenAPIRoles(t *testing.T) {
	for _, contract := range []contract.Version{contract.V13, contract.V16} {
		var spec struct {
			Paths map[string]map[string]struct {
				Role     string                `yaml:"x-role"`
				Security []map[string][]string `yaml:"security"`
			}
		}
		if err := yaml.Unmarshal(openapi.Document(contract.String()), &spec); err != nil {
			t.Logf("%v", err) // the paths' own parameters are lists
		}
		for _, operation := range described(t, contract) {
			method, path, _ := strings.Cut(operation, " ")
			op := spec.Paths[path][strings.ToLower(method)]
			for _, d := range dialects {
				path = strings.TrimPrefix(path, d.prefix())
			}
			want := wanted[method+" "+strings.NewReplacer("{worker_id}", ":id", "{reservation_id}", ":id").Replace(path)].role
			secured := len(op.Security) == 2 && op.Security[0]["bearer"][0] == want && op.Security[1]["mutualTLS"][0] == want
			if op.Role != want || secured != (want != "public") {
				t.Errorf("%s: role %q with security %v, want %q", operation, op.Role, op.Security, want)
			}
		}
	}
}

// TestOpenAPIServed: the document of the process's contract is served.
func TestOpenAPIServed(t *testing.T) {
	for _, contract := range []contract.Version{contract.V13, contract.V16} {
		w := call(t, New(&fake{}, (&fake{}).conductor(), Options{Log: zerolog.Nop(), Contract: contract}), "GET", "/openapi.yaml", "", nil)
		if w.Code != 200 || w.Header().Get("Content-Type") != "application/yaml" || w.Body.String() != string(openapi.Document(contract.String())) {
			t.Errorf("%s: %d %q, %d bytes", contract, w.Code, w.Header().Get("Content-Type"), w.Body.Len())
		}
	}
}

// TestConductorExamples: the Conductor's routes accept every body that the
// description gives as an example.
func TestConductorExamples(t *testing.T) {
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
	if err := yaml.Unmarshal(openapi.Document("1.3"), &spec); err != nil {
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
