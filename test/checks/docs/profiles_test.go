package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// TestProfiles proves that the commands of the profiles in docs/start/choose.md are ones that the service starts
// with: --check-config finds no fault in them.
func TestProfiles(t *testing.T) {
	root := rootOf(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "workers.yaml"), []byte("workers: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("`select-service ([^`]+)`").FindAllStringSubmatch(section(t, read(t, root, "docs/start/choose.md"), "Profiles"), -1)
	if len(commands) < 10 {
		t.Errorf("the page has %d profiles", len(commands))
	}
	for _, m := range commands {
		check := exec.CommandContext(t.Context(), e2e.Binary(t), append(strings.Fields(m[1]), "--check-config")...)
		check.Dir = dir
		check.Env = []string{"POD_NAMESPACE=llm", "POD_IP=10.0.0.7", "HOSTNAME=a", "GORACE=" + os.Getenv("GORACE")}
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("select-service %s: %v\n%s", m[1], err, out)
		}
	}
}
