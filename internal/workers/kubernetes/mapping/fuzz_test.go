package mapping_test

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
)

// FuzzMap proves that whatever a pod's owner writes into its annotations and labels, its workers
// can be told, stay the operator's tenant's and on the pod's address, and are few (scenario 36).
func FuzzMap(f *testing.F) {
	f.Add("data-parallel-size", "4096", "prefill", "10.0.0.1")
	f.Add("kv-events-port", "65535", "encode", "fd00::1")
	f.Add("model", "x", "", "127.0.0.1")
	f.Fuzz(func(t *testing.T, name, value, role, ip string) {
		e := configured()
		p := pod(func(p *mapping.Pod) {
			p.IP, p.Labels = ip, map[string]string{mapping.RoleLabelLLMD: role}
			p.Annotations = map[string]string{mapping.AnnotationPrefix + name: value, "llm-d.ai/active-ports": value}
		})
		m := mapping.Map(p, &mapping.Pool{Ports: []uint16{8000, 8001}}, &e, &settings, func(*catalog.Record) *catalog.Description { return nil })
		if len(m.Workers) > 2 || m.Excluded != "" && len(m.Workers) > 0 {
			t.Fatalf("%d workers, excluded %q", len(m.Workers), m.Excluded)
		}
		for _, w := range m.Workers {
			if w.Record.Scope.Tenant != "default" || !strings.HasPrefix(*w.Record.Endpoint, "http://") || w.Record.RankCount() > catalog.MaxRanks {
				t.Fatalf("%+v", w.Record)
			}
		}
	})
}
