package main

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/workload"
)

func places(t *testing.T, p policy, n int) []int {
	t.Helper()
	var all []int
	for id := 1; id <= n; id++ {
		at, err := p.place(t.Context(), &workload.Request{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, at.engine)
	}
	return all
}

func TestRoundRobin(t *testing.T) {
	if diff := cmp.Diff([]int{0, 1, 2, 0, 1}, places(t, roundRobinPolicy{3}, 5)); diff != "" {
		t.Error(diff)
	}
}

// TestRandom proves that a seed fixes the places and that all engines are used.
func TestRandom(t *testing.T) {
	first := places(t, randomPolicy{4, 1}, 400)
	if diff := cmp.Diff(first, places(t, randomPolicy{4, 1}, 400)); diff != "" {
		t.Error("one seed, two results")
	}
	counts := map[int]int{}
	for _, e := range first {
		counts[e]++
	}
	for e := range 4 {
		if counts[e] < 70 || counts[e] > 130 {
			t.Errorf("engine %d gets %d of 400", e, counts[e])
		}
	}
}

// TestLeastLoaded proves that the engine with the fewest outstanding requests is
// taken, and that failed requests count no longer.
func TestLeastLoaded(t *testing.T) {
	p := newLeastLoadedPolicy(3, 1)
	places(t, p, 9)
	if diff := cmp.Diff([]int{3, 3, 3}, p.outstanding); diff != "" {
		t.Fatal(diff)
	}
	for range 2 {
		for _, event := range []string{simapi.EventFirstToken, simapi.EventBlock, simapi.EventError} {
			if err := p.report(t.Context(), nil, placement{engine: 1}, simapi.Step{Event: event}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]int{1, 1}, places(t, p, 2)); diff != "" {
		t.Errorf("places: %s", diff)
	}
}

func TestFigures(t *testing.T) {
	xs := []float64{4, 1, 3, 2}
	for name, tc := range map[string]struct{ got, want float64 }{
		"mean":           {stats.Mean(xs), 2.5},
		"mean of none":   {stats.Mean(nil), 0},
		"median":         {stats.Quantile(xs, 0.5), 2},
		"p99":            {stats.Quantile(xs, 0.99), 4},
		"lowest":         {stats.Quantile(xs, 0), 1},
		"p99 of none":    {stats.Quantile(nil, 0.99), 0},
		"spread":         {spread(xs), 1.6},
		"spread of none": {spread([]float64{0, 0}), 0},
	} {
		if tc.got != tc.want {
			t.Errorf("%s = %v, want %v", name, tc.got, tc.want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := stats.Thousands(n); got != want {
			t.Errorf("stats.Thousands(%d) = %s", n, got)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		ok   bool
	}{
		"one engine":     {[]string{"--engines", "http://a"}, true},
		"some policies":  {[]string{"--engines", "http://a,http://b", "--policies", "random,select-service"}, true},
		"no engine":      {nil, false},
		"unknown policy": {[]string{"--engines", "http://a", "--policies", "best"}, false},
		"a model":        {[]string{"--engines", "http://a", "--policies", "select-service/m"}, true},
		"no model":       {[]string{"--engines", "http://a", "--policies", "select-service/"}, false},
		"agents":         {[]string{"--engines", "http://a", "--workload", "agents", "--rate", "1.4"}, true},
		"no workload":    {[]string{"--engines", "http://a", "--workload", "cats"}, false},
		"three rounds":   {[]string{"--engines", "http://a", "--rounds", "3", "--warm"}, true},
		"again":          {[]string{"--engines", "http://a", "--again", "2"}, true},
		"never again":    {[]string{"--engines", "http://a", "--again", "-1"}, false},
		"no round":       {[]string{"--engines", "http://a", "--rounds", "0"}, false},
		"no rate":        {[]string{"--engines", "http://a", "--rate", "0"}, false},
		"late":           {[]string{"--engines", "http://a", "--lifecycle", "late"}, true},
		"never":          {[]string{"--engines", "http://a", "--lifecycle", "never"}, false},
		"a slow phase":   {[]string{"--engines", "http://a", "--slow", "1:0.3:0-0.5"}, true},
		"slow engine":    {[]string{"--engines", "http://a", "--slow", "2:0.3:0-0.5"}, false},
		"slow to zero":   {[]string{"--engines", "http://a", "--slow", "1:0:0-0.5"}, false},
		"slow backwards": {[]string{"--engines", "http://a", "--slow", "1:0.3:0.5-0.5"}, false},
		"slow nonsense":  {[]string{"--engines", "http://a", "--slow", "often"}, false},
		"no requests":    {[]string{"--engines", "http://a", "--requests", "0"}, false},
		"standstill":     {[]string{"--engines", "http://a", "--speedup", "-1"}, false},
	} {
		conf := defaults()
		if err := conf.flags().Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		if _, err := conf.validate(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDescribe(t *testing.T) {
	plain := engineModel{Speed: 1, CacheBlocks: 16384}
	for want, engines := range map[string][]engineModel{
		"0 engines": nil,
		"2 engines": {plain, plain},
		"2 engines with chunked prefill, speeds 1 0.5, caches of 16,384 8,192 blocks": {
			{Chunked: true, Speed: 1, CacheBlocks: 16384}, {Chunked: true, Speed: 0.5, CacheBlocks: 8192},
		},
	} {
		if got := describe(engines); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLoad proves that a rate of 2 halves the times of arrival and changes nothing else.
func TestLoad(t *testing.T) {
	conf := defaults()
	conf.Workload, conf.Requests = agents, 50
	plain, err := load(conf)
	if err != nil {
		t.Fatal(err)
	}
	conf.Rate = 2
	fast, err := load(conf)
	if err != nil {
		t.Fatal(err)
	}
	for i := range plain {
		plain[i].At /= 2
	}
	if !reflect.DeepEqual(plain, fast) { // cmp.Diff takes seconds for so many tokens
		t.Error(cmp.Diff(plain, fast))
	}
}

func TestSpeedupFor(t *testing.T) {
	for span, want := range map[time.Duration]float64{
		0: 1, 10 * time.Second: 1, 145 * time.Second: 9.1, 240 * time.Second: 15, time.Hour: 20,
	} {
		if got := speedupFor(span); got != want {
			t.Errorf("speedupFor(%v) = %v, want %v", span, got, want)
		}
	}
}
