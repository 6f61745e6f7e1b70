package httpapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/internal/workers/kubernetes"
	"github.com/select-service/select-service/pkg/catalog"
)

type known []workers.Report

func (k known) Reports() []workers.Report { return k }

type inFleet struct{ of *fleet.Membership }

func (f inFleet) Membership() *fleet.Membership { return f.of }

// TestReadySources: GET /ready and GET /kubernetes in full. Source: their answers before they were written here
// (release 978a2c83).
func TestReadySources(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := kubernetes.Status{Enabled: true, Sources: []kubernetes.SourceStatus{{Kind: "pods", Name: "vllm", State: kubernetes.Synced, Since: since}}, Excluded: []kubernetes.Excluded{}}
	of := &fleet.Membership{State: "connected", Replica: "a", Replicas: []string{}, Catalog: fleet.Status{State: fleet.Current, Version: 3, Workers: 2}}
	for name, tt := range map[string]struct {
		sources             Sources
		fleet               FleetStatus
		ready, kubernetesIs string
	}{
		"none": {ready: `{"ready":false,"schedulable_workers":0,"workers":[]}`, kubernetesIs: `{"enabled":false}`},
		"off":  {known{}, inFleet{}, `{"ready":false,"schedulable_workers":0,"workers":[]}`, `{"enabled":false}`},
		"both on": {
			sources: known{{Kind: catalog.SourceKubernetes, Parts: []workers.Part{{Name: "vllm", State: "synced"}}, Detail: st}}, fleet: inFleet{of},
			ready: `{"ready":false,"schedulable_workers":0,"workers":[],"kubernetes":{"synced":false,"sources":[{"name":"vllm","state":"` + string(kubernetes.Synced) +
				`"}]},"fleet":{"state":"connected","replica":"a","replicas":[],"catalog":{"state":"current","version":3,"workers":2}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := New(&fake{}, (&fake{}).conductor(), Options{Log: zerolog.Nop(), Sources: tt.sources, Fleet: tt.fleet})
			if got := ask(h, "GET", "/ready", "", "").Body.String(); got != tt.ready {
				t.Errorf("ready (-want +got):\n%s", cmp.Diff(tt.ready, got))
			}
			want := tt.kubernetesIs
			if want == "" {
				text, err := json.Marshal(st)
				if err != nil {
					t.Fatal(err)
				}
				want = string(text)
			}
			if got := ask(h, "GET", "/kubernetes", "", "").Body.String(); got != want {
				t.Errorf("kubernetes (-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}
