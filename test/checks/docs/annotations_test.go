package docs

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
)

// TestAnnotations proves that the page about Kubernetes names each annotation of pods that has a meaning.
func TestAnnotations(t *testing.T) {
	page := read(t, rootOf(t), "docs/start/kubernetes.md")
	_, list, _ := strings.Cut(page, "Annotations of the pod template,")
	list, _, _ = strings.Cut(list, "A malformed")
	for _, name := range mapping.Annotations() {
		if !strings.Contains(list, "`"+name+"`") {
			t.Errorf("docs/start/kubernetes.md: the list of annotations lacks `%s`", name)
		}
	}
}
