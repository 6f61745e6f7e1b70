package attacks

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/api"
	"github.com/select-service/select-service/test/checks/e2e"
)

// included are the roles that the holder of one has.
var included = map[string][]string{
	"read": {"public", "read"}, "call": {"public", "read", "call"}, "operate": {"public", "read", "call", "operate"},
	"peer": {"public", "peer"}, "metrics": {"public", "metrics"}, "none": {},
}

// TestCertificateMatrix: every route against callers with no certificate, an expired
// one, one of another authority, one that is not listed, and one for each role.
func TestCertificateMatrix(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	entries := "names:\n"
	for role := range included {
		if role != "none" {
			entries += "- {name: " + role + ", roles: [" + role + "]}\n"
		}
	}
	entries += "- {name: caller, roles: [read]}\n"
	if err := os.WriteFile(file, []byte(entries), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveTLS(t, true, "--use-kv-events=false", "--tokens-file", file)
	until := time.Now().Add(time.Hour)
	denied := map[string]*http.Client{
		"no certificate":       s.client(),
		"expired":              s.client(s.authority.Issue(t, "operate", time.Now().Add(-time.Minute)).Load(t)),
		"of another authority": s.client(e2e.NewAuthority(t).Issue(t, "operate", until).Load(t)),
	}
	holders := make(map[string]*http.Client)
	for role := range included {
		holders[role] = s.client(s.authority.Issue(t, role, until).Load(t))
	}
	var document struct {
		Paths map[string]map[string]yaml.Node
	}
	if err := yaml.Unmarshal(api.Document("1.3"), &document); err != nil {
		t.Fatal(err)
	}
	routes := 0
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		item := document.Paths[path]
		target := s.url + strings.NewReplacer("{worker_id}", "7", "{reservation_id}", "r").Replace(path)
		for method, node := range item {
			var operation struct {
				Role string `yaml:"x-role"`
			}
			if method = strings.ToUpper(method); method == "PARAMETERS" || node.Decode(&operation) != nil {
				continue
			}
			routes++
			for name, client := range denied {
				if strings.HasPrefix(path, "/v1.") {
					break // they do not get as far as the path: once each is enough
				}
				if a, err := e2e.Call(t.Context(), client, method, target, nil); err == nil {
					t.Errorf("%s: %s %s is answered: %v", name, method, path, a)
				}
			}
			for role, client := range holders {
				a, err := e2e.Call(t.Context(), client, method, target, nil)
				if err != nil {
					t.Fatal(err)
				}
				want := http.StatusForbidden
				if role == "none" {
					want = http.StatusUnauthorized
				}
				if allowed := operation.Role == "public" || slices.Contains(included[role], operation.Role); allowed == (a.Status == want) {
					t.Errorf("%s with the certificate of %s: %d", method+" "+path, role, a.Status)
				}
			}
		}
	}
	if routes < 100 {
		t.Errorf("%d routes", routes)
	}
}
