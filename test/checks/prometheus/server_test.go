package prometheus

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/test/checks/e2e"
)

// job is the name that the alerts look for.
const job = "select-service"

// server is a running Prometheus.
type server struct {
	t   *testing.T
	url string
}

// startServer starts Prometheus with the example configuration and the rules as
// they are, but for the targets, and a second instead of 15 between scrapes.
func startServer(t *testing.T, targets ...string) *server {
	t.Helper()
	var conf map[string]any
	if err := yaml.Unmarshal(read(t, "deploy", "prometheus", "prometheus.yml"), &conf); err != nil {
		t.Fatal(err)
	}
	conf["global"] = map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"}
	conf["rule_files"] = []string{path(t, "deploy", "prometheus", "rules.yml")}
	scrape := conf["scrape_configs"].([]any)[0].(map[string]any)
	scrape["scrape_timeout"] = "1s"
	scrape["static_configs"] = []any{map[string]any{"targets": targets}}
	text, err := yaml.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + strconv.Itoa(e2e.FreePort(t))
	p := e2e.Start(t, e2e.Options{Command: []string{
		"prometheus", "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=" + address, "--log.level=warn",
	}})
	s := &server{t: t, url: "http://" + address}
	e2e.Eventually(t, "Prometheus answers", func() error {
		if code, ended := p.Wait(0); ended {
			t.Fatalf("Prometheus ended with code %d: %s", code, p.Output())
		}
		return get(s.url+"/-/ready", nil)
	})
	return s
}

// point is one sample of an answer.
type point struct {
	Metric map[string]string
	Value  float64
}

// query evaluates an expression at an instant; the zero time is now.
func (s *server) query(expr string, at time.Time) ([]point, error) {
	form := url.Values{"query": {expr}}
	if !at.IsZero() {
		form.Set("time", fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000))
	}
	var answer struct {
		Data struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any // time, and the value as text
			}
		}
	}
	if err := get(s.url+"/api/v1/query?"+form.Encode(), &answer); err != nil {
		return nil, err
	}
	if answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("the answer is a %s", answer.Data.ResultType)
	}
	var points []point
	for _, r := range answer.Data.Result {
		v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			return nil, err
		}
		points = append(points, point{r.Metric, v})
	}
	return points, nil
}

// answers fails unless an expression has a sample that is a number.
func (s *server) answers(expr string, at time.Time) error {
	points, err := s.query(expr, at)
	if err != nil {
		return err
	}
	for _, p := range points {
		if !math.IsNaN(p.Value) && !math.IsInf(p.Value, 0) {
			return nil
		}
	}
	return fmt.Errorf("no data (%d samples, none of them a number)", len(points))
}

// value is that of an expression with one sample.
func (s *server) value(t *testing.T, expr string, at time.Time) float64 {
	t.Helper()
	points, err := s.query(expr, at)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	if len(points) != 1 {
		t.Fatalf("%s has %d samples: %v", expr, len(points), points)
	}
	return points[0].Value
}

// scraped waits until every target has been scraped after a moment, and returns
// the latest instant at which the answers of all of them are those after it.
func (s *server) scraped(targets int, after time.Time) (at time.Time) {
	s.t.Helper()
	e2e.Eventually(s.t, "all targets are scraped", func() error {
		// Of a plain selector it is the sample's time, of anything else the query's.
		points, err := s.query(fmt.Sprintf("timestamp(up{job=%q})", job), time.Time{})
		if err != nil {
			return err
		}
		if len(points) != targets {
			return fmt.Errorf("%d of %d targets are known", len(points), targets)
		}
		at = time.Time{}
		for _, p := range points {
			scrape := time.UnixMilli(int64(math.Round(p.Value * 1000)))
			if !scrape.After(after) {
				return fmt.Errorf("%s was scraped at %v, not after %v", p.Metric["instance"], scrape, after)
			}
			if scrape.After(at) {
				at = scrape
			}
		}
		return nil
	})
	return at
}

// api reads another answer of the server's API.
func (s *server) api(path string, data any) {
	s.t.Helper()
	answer := struct{ Data any }{data}
	if err := get(s.url+"/api/v1/"+path, &answer); err != nil {
		s.t.Fatal(err)
	}
}

var client = &http.Client{Timeout: 10 * time.Second}

// get reads a JSON answer with status 200; v may be nil.
func get(url string, v any) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(v)
}
