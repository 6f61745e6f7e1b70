package metrics

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew")

// all feeds every family with one sample that names its labels, and one more
// where there are any.
func all(t *testing.T) Sources {
	t.Helper()
	labels := map[string][]string{
		"KVEvents": {"stored", "device", "applied"}, "KVEventBlocks": {"device", "stored"}, "KVMessages": {"live"},
		"KVGaps": {"lost"}, "KVReplays": {"complete"}, "KVConnections": {"connect"}, "KVStreams": {"live"},
		"IndexBlocks": {"device"}, "Workers": {"schedulable"}, "Selections": {"reserved"}, "ReservationEvents": {"booked"},
		"ReplicaSent": {"booked"}, "ReplicaReceived": {"freed"}, "ReplicaDropped": {"known"}, "ReplicaPeers": {"connected"},
		"ReplicaSnapshots": {"ok"}, "ReplicaLearned": {"adopted"}, "RecoveryStage": {"fetching"}, "RecoverySkipped": {"malformed"},
		"ConductorIndexBlocks": {"device"}, "ConductorBlocks": {"tokens"},
	}
	var s Sources
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		samples := []Sample{{Labels: labels[name], Value: float64(i + 1)}}
		if l := labels[name]; l != nil {
			other := append([]string{}, l...)
			other[len(other)-1] = "other"
			samples = append(samples, Sample{Labels: other})
		}
		v.Field(i).Set(reflect.ValueOf(Source(func() []Sample { return samples })))
	}
	return s
}

// TestFamilies compares the service's own families with a golden file: names,
// types, help texts, labels. Every source must reach a family.
func TestFamilies(t *testing.T) {
	m := New("1.2.3", all(t))
	var own []string
	for line := range strings.Lines(scrape(t, m)) {
		if strings.Contains(line, namespace) {
			own = append(own, line)
		}
	}
	got := strings.Join(own, "")
	golden := filepath.Join("testdata", "families.golden")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("families changed (-rewrite writes %s anew):\n%s", golden, got)
	}
	if n := reflect.TypeFor[Sources]().NumField(); n != len(families) {
		t.Errorf("%d sources feed %d families", n, len(families))
	}
}

// TestLint holds names and help texts against Prometheus' own rules.
func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(New("1.2.3", all(t)).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestNoSources: families without a source are left out, runtime, process and
// build are always there.
func TestNoSources(t *testing.T) {
	body := scrape(t, New("1.2.3", Sources{}))
	if regexp.MustCompile(`(?m)^select_service_(index|kv|work)`).MatchString(body) {
		t.Error("a family without a source is exposed")
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "go_build_info", `select_service_build_info{version="1.2.3"} 1`} {
		if !strings.Contains(body, "\n"+name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestSourceIsAskedAtEveryScrape: values are never cached.
func TestSourceIsAskedAtEveryScrape(t *testing.T) {
	n := 0.0
	m := New("", Sources{IndexBytes: Value(func() float64 { n++; return n })})
	scrape(t, m)
	if body := scrape(t, m); !strings.Contains(body, "select_service_index_bytes 2\n") {
		t.Errorf("second scrape:\n%s", body)
	}
}

// TestBadSample: labels that do not fit fail the scrape and not the process.
func TestBadSample(t *testing.T) {
	m := New("", Sources{Workers: func() []Sample { return []Sample{{Labels: []string{"a", "b"}}} }})
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusInternalServerError {
		t.Errorf("status %d", rec.Code)
	}
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}
