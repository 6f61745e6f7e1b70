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
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew")

// labelsOf has an example of the labels of each family that has any, by the
// field of Sources.
var labelsOf = map[string][]string{
	"KVEvents": {"stored", "device", "applied"}, "KVEventBlocks": {"device", "stored"}, "KVMessages": {"live"},
	"KVGaps": {"lost"}, "KVReplays": {"complete"}, "KVConnections": {"connect"}, "KVStreams": {"live"},
	"IndexBlocks": {"device"}, "Workers": {"m", "schedulable"}, "Selections": {"m", "reserved"}, "ReservationEvents": {"booked"},
	"Remembered": {"answers"}, "WorkersFile": {"applied"},
	"OverlapRatio": {"m"}, "OverlapForegone": {"m"}, "CostSpread": {"m"}, "QueueWait": {"m"},
	"Rejections": {"m", "queue_limit"}, "BusyThresholds": {"m", "active_prefill_tokens_threshold"}, "WorkersUnjudged": {"m", "active_decode_blocks_threshold"},
	"TasksIssued": {"m", "select"}, "TasksRejected": {"m", "select"}, "TasksQueued": {"m", "select"}, "ModelQueued": {"m"},
	"RankActiveBlocks": {"m", "t", "1", "0"}, "RankPrefillTokens": {"m", "t", "1", "0"}, "RankActiveRequests": {"m", "t", "1", "0"},
	"RankUsedBlocks": {"m", "t", "1", "0"}, "RankTotalBlocks": {"m", "t", "1", "0"}, "RankBatchedTokens": {"m", "t", "1", "0"},
	"WorkerOverloaded": {"m", "t", "1"},
	"FrontendBlocks":   {"1", "0", "select"}, "FrontendPrefill": {"1", "0", "select"},
	"ReplicaSent": {"booked"}, "ReplicaReceived": {"freed"}, "ReplicaDropped": {"known"}, "ReplicaPeers": {"connected"},
	"ReplicaSnapshots": {"ok"}, "ReplicaLearned": {"adopted"}, "RecoveryStage": {"fetching"}, "RecoverySkipped": {"malformed"},
	"ConductorIndexBlocks": {"device"}, "ConductorBlocks": {"tokens"},
	"IndexerListeners": {"active"}, "IndexerEvents": {"stored", "ok"}, "IndexerWarnings": {"duplicate_store"},
}

// fill gives a field of Sources one sample that names its labels, and one more
// where there are any.
func fill(field reflect.Value, name string, value float64) {
	labels := labelsOf[name]
	if field.Type() == reflect.TypeFor[[]Distribution]() {
		h := NewHistogram([]float64{1, 10})
		h.Observe(value)
		field.Set(reflect.ValueOf([]Distribution{{labels, h}}))
		return
	}
	samples := Samples{{Labels: labels, Value: value}}
	if labels != nil {
		other := append([]string{}, labels...)
		other[len(other)-1] = "other"
		samples = append(samples, Sample{Labels: other})
	}
	field.Set(reflect.ValueOf(samples))
}

// all fills every field.
func all() Sources {
	var s Sources
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		fill(v.Field(i), v.Type().Field(i).Name, float64(i+1))
	}
	return s
}

// of makes Metrics that show s, and one request.
func of(s Sources, opt Options) *Metrics {
	r := NewRequests()
	l := r.Listener("conductor")
	l.Begin()
	l.End(http.MethodPost, "/query", 404, 3*time.Millisecond)
	return New("1.2.3", func(Options) Sources { return s }, r, opt)
}

// TestFamilies compares the service's own families with a golden file: names,
// types, help texts, labels.
func TestFamilies(t *testing.T) {
	for name, opt := range map[string]Options{"families": {}, "aliases": {DynamoAliases: true}} {
		got := own(scrape(t, of(all(), opt)))
		golden := filepath.Join("testdata", name+".golden")
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
	}
}

// own leaves out the families of runtime and process.
func own(body string) string {
	var out strings.Builder
	for line := range strings.Lines(body) {
		if strings.Contains(line, namespace) || strings.Contains(line, "dynamo_") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// TestEverySourceIsShown: each field of Sources makes a difference.
func TestEverySourceIsShown(t *testing.T) {
	opt := Options{DynamoAliases: true}
	without := strings.Count(scrape(t, of(Sources{}, opt)), "# TYPE")
	for field := range reflect.TypeFor[Sources]().Fields() {
		var s Sources
		fill(reflect.ValueOf(&s).Elem().FieldByName(field.Name), field.Name, 1)
		if with := strings.Count(scrape(t, of(s, opt)), "# TYPE"); with <= without {
			t.Errorf("nothing shows %s", field.Name)
		}
	}
}

// TestLint holds names and help texts against Prometheus' own rules. Dynamo's
// names break them.
func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(of(all(), Options{}).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestNoSources: families without samples are left out; runtime, process and
// build are always there.
func TestNoSources(t *testing.T) {
	body := scrape(t, of(Sources{}, Options{}))
	if regexp.MustCompile(`(?m)^(select_service_(index|kv|work)|dynamo_)`).MatchString(body) {
		t.Error("a family without samples is exposed")
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "go_build_info", `select_service_build_info{version="1.2.3"} 1`} {
		if !strings.Contains(body, "\n"+name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestGatheredOnceForEveryScrape: nothing is cached, no family asks again, and
// whoever gathers is told what for.
func TestGatheredOnceForEveryScrape(t *testing.T) {
	n := 0
	m := New("", func(opt Options) Sources {
		n++
		if !opt.DynamoAliases {
			t.Error("aliases are not asked for")
		}
		s := all()
		s.IndexBytes = Value(n)
		return s
	}, NewRequests(), Options{DynamoAliases: true})
	for i := range 3 {
		if n != i {
			t.Errorf("gathered %d times before scrape %d", n, i)
		}
		if body := scrape(t, m); !strings.Contains(body, "select_service_index_bytes "+string(rune('1'+i))+"\n") {
			t.Errorf("scrape %d:\n%s", i, own(body))
		}
	}
}

// TestBadSample: labels that do not fit, and series that are there twice, fail
// the scrape and not the process.
func TestBadSample(t *testing.T) {
	for name, s := range map[string]Sources{
		"labels":    {KVStreams: Samples{{Labels: []string{"a", "b"}}}},
		"histogram": {QueueWait: []Distribution{{Labels: []string{"a", "b"}, Histogram: NewHistogram(nil)}}},
		"twice":     {KVStreams: Samples{{Labels: []string{"a"}}, {Labels: []string{"a"}}}},
		"no UTF-8":  {KVStreams: Samples{{Labels: []string{"\xff"}}}},
	} {
		rec := httptest.NewRecorder()
		of(s, Options{}).Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if rec.Code != http.StatusInternalServerError {
			t.Errorf("%s: status %d", name, rec.Code)
		}
	}
}

// TestScrapesAtATime: three scrapes may be under way; a further one is answered
// with 503 and gathers nothing, and there is room again when they are over.
func TestScrapesAtATime(t *testing.T) {
	gathering, release := make(chan bool, 10), make(chan struct{})
	h := New("", func(Options) Sources {
		gathering <- true
		<-release
		return Sources{}
	}, NewRequests(), Options{}).Handler()
	status := func() int {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return rec.Code
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if code := status(); code != http.StatusOK {
				t.Errorf("status %d", code)
			}
		})
	}
	for range 3 {
		<-gathering
	}
	for range 5 {
		if code := status(); code != http.StatusServiceUnavailable {
			t.Errorf("status %d beyond three scrapes", code)
		}
	}
	close(release)
	wg.Wait()
	if code := status(); code != http.StatusOK {
		t.Errorf("status %d afterwards", code)
	}
	if n := len(gathering); n != 1 {
		t.Errorf("gathered %d times more, want once", n)
	}
}

// TestEscaping: label values may be any text.
func TestEscaping(t *testing.T) {
	body := scrape(t, of(Sources{ModelQueued: Samples{
		{Labels: []string{"a\"b\\c\nd{},=é"}, Value: 1}, {Labels: []string{""}, Value: 2}, {Labels: []string{"\x00\t"}, Value: 3},
	}}, Options{}))
	for _, want := range []string{`{model="a\"b\\c\nd{},=é"} 1`, `{model=""} 2`, "{model=\"\x00\t\"} 3"} {
		if !strings.Contains(body, "dynamo_frontend_queued_requests"+want+"\n") {
			t.Errorf("no %s in\n%s", want, own(body))
		}
	}
}

func scrape(t testing.TB, m *Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}
