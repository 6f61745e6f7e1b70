package attacks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// Engines that lie about their load and about themselves.

// loadStat is a SGLang report of a rank: the elements after the tag.
func loadStat(t *testing.T, elements ...any) []byte {
	t.Helper()
	payload, err := msgpack.Marshal(append([]any{"LoadStat"}, elements...))
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// attach registers worker id of a model with more members of its record, and returns why it is not
// schedulable.
func attach(t *testing.T, s *e2e.Service, model string, id int, more e2e.Object) string {
	t.Helper()
	worker := e2e.Object{
		"worker_id": id, "model_name": model, "endpoint": fmt.Sprintf("http://w%d:8000", id), "block_size": 4, "max_num_batched_tokens": 1024,
	}
	for k, v := range more {
		worker[k] = v
	}
	var record struct {
		Reasons []string `json:"not_schedulable_reasons"`
	}
	s.Must(t, http.StatusCreated, "POST", "/workers", worker, &record)
	return strings.Join(record.Reasons, "; ")
}

// running returns the running requests that a rank is said to have, -1 without a report, and its
// foreign requests.
func running(t *testing.T, s *e2e.Service, id uint64) (reported, foreign int64) {
	t.Helper()
	var all []struct {
		Loads []struct {
			Worker   uint64                   `json:"worker_id"`
			Reported *struct{ Running int64 } `json:"reported"`
			Foreign  struct{ Requests int64 } `json:"foreign"`
		}
	}
	s.Must(t, http.StatusOK, "GET", "/loads", nil, &all)
	for _, scope := range all {
		for _, l := range scope.Loads {
			if l.Worker != id {
				continue
			}
			if l.Reported == nil {
				return -1, l.Foreign.Requests
			}
			return l.Reported.Running, l.Foreign.Requests
		}
	}
	t.Fatalf("worker %d has no load", id)
	return 0, 0
}

// countedTo waits until a counter is at least n.
func countedTo(t *testing.T, s *e2e.Service, series string, n float64) {
	t.Helper()
	e2e.Eventually(t, series, func() error {
		got, err := s.Sum(t.Context(), "select_service_"+series)
		if err == nil && got < n {
			err = fmt.Errorf("%v of %v", got, n)
		}
		return err
	})
}

// selects checks that a model is served.
func selects(t *testing.T, s *e2e.Service, model string) (worker uint64) {
	t.Helper()
	var chosen struct {
		Worker uint64 `json:"worker_id"`
	}
	s.Must(t, http.StatusOK, "POST", "/select", e2e.Object{"model_name": model, "token_ids": []int{1, 2, 3, 4, 5}}, &chosen)
	return chosen.Worker
}

// TestHostileReports: numbers that cannot be are counted, and leave the last report in place; the
// greatest ones that can be put off the rank that says them alone; another rank's number
// does not count for that rank; 10,000 reports a second are read as far as a stream may send, and
// others are served meanwhile.
func TestHostileReports(t *testing.T) {
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_MAX_MEMORY": "512MiB"}, "--use-kv-events=false")
	p := zmqtest.NewPublisher(t, "")
	defer p.Close()
	attach(t, s, "m", 1, e2e.Object{"load_endpoint": p.Endpoint})
	attach(t, s, "m", 2, nil)
	p.Subscribers(1)
	number := uint64(0)
	send := func(payload []byte) {
		p.Send([]byte("load"), zmqtest.Seq(number), payload)
		number++
	}
	say := func(want int64, payload []byte) {
		t.Helper()
		send(payload)
		e2e.Eventually(t, "the report is used", func() error {
			if n, _ := running(t, s, 1); n != want {
				return fmt.Errorf("%d requests are running, want %d", n, want)
			}
			return nil
		})
	}
	said := time.Now()
	say(3, loadStat(t, 3, 0, 0, 1000, 77)) // the socket says whose it is
	bad := map[string][][]byte{
		"bad_number": {
			loadStat(t, math.NaN()), loadStat(t, math.Inf(1)), loadStat(t, 1e30), loadStat(t, -1), loadStat(t, -0.5), loadStat(t, 1<<49), loadStat(t, 1, 1, uint64(math.MaxUint64)),
		},
		"malformed": {nil, {0xc1}, loadStat(t, "many"), loadStat(t), {0xdd, 0xff, 0xff, 0xff, 0xff}, bytes.Repeat([]byte{0x91}, 1<<20)},
	}
	for why, payloads := range bad {
		for i, payload := range payloads {
			send(payload)
			countedTo(t, s, `load_reports_dropped_total{reason="`+why+`",source="push"}`, float64(i+1))
		}
	}
	p.Send([]byte("load"), []byte("short"), loadStat(t, 9))
	p.Send([]byte("load"), zmqtest.Seq(1<<63), loadStat(t, 9)) // below 0
	countedTo(t, s, `load_reports_dropped_total{reason="malformed",source="push"}`, float64(len(bad["malformed"])+2))
	if n, _ := running(t, s, 1); n != 3 && (n != -1 || time.Since(said) < reports.DefaultTTL) { // by then it counts no more
		t.Errorf("%d requests are running after reports that cannot be, want 3", n)
	}
	const most = 1 << 48
	say(most, loadStat(t, most, most, most, most, 0, most, most, most, most, most))
	e2e.Eventually(t, "nobody chooses the rank", func() error {
		if worker := selects(t, s, "m"); worker != 2 {
			return fmt.Errorf("worker %d is chosen", worker)
		}
		return nil
	})
	if saturation, err := s.Sum(t.Context(), "select_service_scope_saturation_ratio"); err != nil || math.IsNaN(saturation) || math.IsInf(saturation, 0) {
		t.Errorf("a saturation of %v (%v)", saturation, err)
	}

	stop, good := make(chan struct{}), make(chan others)
	go func() { good <- callBeside(s, "m", stop) }()
	read, err := s.Sum(t.Context(), "select_service_load_reports_total")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	const flooded, burst = 30_000, 1000
	payload := loadStat(t, 5, 5, 5, 1000, 0, 5, 5, 5, 5, 5)
	for sent := 0; sent < flooded; sent += burst {
		for range burst {
			send(payload)
		}
		if rest := time.Duration(sent+burst)*time.Second/10_000 - time.Since(begin); rest > 0 {
			time.Sleep(rest)
		}
	}
	countedTo(t, s, "load_reports_total", read+1)
	e2e.Eventually(t, "all are counted", func() error {
		now, err := s.Sum(t.Context(), "select_service_load_reports_total")
		often, droppedErr := s.Sum(t.Context(), `select_service_load_reports_dropped_total{reason="too_often",source="push"}`)
		if now-read+often < flooded {
			return errors.Join(fmt.Errorf("%v read, %v dropped of %d", now-read, often, flooded), err, droppedErr)
		}
		if limit := 100 * (2 + time.Since(begin).Seconds()); now-read > limit {
			t.Errorf("%v reports were read, want at most %v", now-read, limit)
		}
		return nil
	})
	close(stop)
	(<-good).check(t)
	checkMemory(t, s)
}

// TestHostilePages: what a metrics page says that cannot be, text without end, series without
// number and a redirect are counted, and have no effect; the host of the redirect is not
// asked.
func TestHostilePages(t *testing.T) {
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_MAX_MEMORY": "512MiB"}, "--use-kv-events=false")
	var elsewhere, written atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		_, _ = io.WriteString(w, "vllm:num_requests_running 8\nvllm:num_requests_waiting 0\n")
	}))
	defer other.Close()
	page := func(engine, value string) string {
		return fmt.Sprintf("vllm:num_requests_running{engine=%q} %s\nvllm:num_requests_waiting{engine=%q} 0\n", engine, value, engine)
	}
	pages := map[string]func(w http.ResponseWriter, r *http.Request){
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/metrics", http.StatusFound)
		},
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			text := []byte(strings.Repeat("python_gc_objects_collected_total 1\n", 1000))
			for n := 0; n < 1<<30; n += len(text) { // a gigabyte
				if _, err := w.Write(text); err != nil {
					return
				}
				written.Add(int64(len(text)))
			}
		},
		"line": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "vllm:num_requests_running{engine=\""+strings.Repeat("x", 1<<20)+"\"} 1\n")
		},
		"series": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 50_000 {
				_, _ = io.WriteString(w, page(strconv.Itoa(i), "1"))
			}
		},
		"nothing": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") },
	}
	texts := map[string]string{
		"nan": page("0", "NaN"), "infinite": page("0", "+Inf"), "huge": page("0", "1e30"), "negative": page("0", "-1"),
		"overfull": page("0", "1") + "vllm:kv_cache_usage_perc{engine=\"0\"} 1.5\n",
		"foreign":  page("0", "4") + page("7", "9") + page("-1", "9") + page("x", "9"),
	}
	for name, text := range texts {
		pages[name] = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pages[r.URL.Path[1:]](w, r) }))
	defer engine.Close()
	stop, good := make(chan struct{}), make(chan others)
	attach(t, s, "others", 100, nil)
	go func() { good <- callBeside(s, "others", stop) }()
	ids := make(map[string]int)
	for name := range pages {
		ids[name] = 1 + len(ids)
		attach(t, s, "m", ids[name], e2e.Object{"load_metrics": e2e.Object{"url": engine.URL + "/" + name, "interval_seconds": 0.25}})
	}
	for series, n := range map[string]float64{
		`load_scrapes_total{result="redirect"}`: 1, `load_scrapes_total{result="too_large"}`: 3, `load_scrapes_total{result="useless"}`: 1,
		`load_reports_dropped_total{reason="bad_number",source="scrape"}`: 5, `load_reports_dropped_total{reason="foreign_rank",source="scrape"}`: 3,
	} {
		countedTo(t, s, series, n)
	}
	for name, id := range ids {
		want := int64(-1)
		if name == "foreign" {
			want = 4
		}
		e2e.Eventually(t, "what is said of "+name, func() error { // a machine that stands still reads no page in time
			if got, foreign := running(t, s, uint64(id)); got != want || foreign != 0 { // fewer than half of the ranks are heard
				return fmt.Errorf("%d requests are running, %d are foreign, want %d and 0", got, foreign, want)
			}
			return nil
		})
	}
	selects(t, s, "m")
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("the host of the redirect was asked %d times", n)
	}
	scrapes, err := s.Sum(t.Context(), `select_service_load_scrapes_total{result="too_large"}`)
	if limit := (scrapes + 1) * (32 << 20); err != nil || float64(written.Load()) > limit { // 4 MiB and what the kernel holds
		t.Errorf("%d bytes of pages without end were taken in %v readings (%v)", written.Load(), scrapes, err)
	}
	for _, told := range []string{
		`{"ranks": {"0": {"running": NaN}}}`, `{"ranks": {"0": {"running": 1e30}}}`, `{"ranks": {"0": {"running": -1}}}`,
		`{"ranks": {"0": {"running": "9"}}}`, `{"ranks": {"0": {"load": 1}}}`, `{"ranks": {"7": {"running": 1}}}`, `{"ranks": {"4294967296": {}}}`,
	} {
		if a, err := s.Call(t.Context(), http.MethodPut, "/workers/100/load", []byte(told)); err != nil || a.Status/100 != 4 {
			t.Errorf("%s: %v (%v)", told, a, err)
		}
	}
	if a, err := s.Call(t.Context(), http.MethodPut, "/workers/100/load", []byte(`{"ranks": {`+strings.Repeat(`"0": {},`, 4<<20)+`"0": {}}}`)); err == nil && a.Status/100 != 4 {
		t.Errorf("a large body: %v", a)
	}
	if got, _ := running(t, s, 100); got != -1 {
		t.Errorf("%d requests are running after refused reports", got)
	}
	close(stop)
	(<-good).check(t)
	checkMemory(t, s)
}

// TestHostileDescriptions: an engine cannot lead the service to other hosts, by naming their sockets
// or by redirects, nor to ports of its own that the operator does not allow; answers without end
// are cut off. The engine's words are in the refusals.
func TestHostileDescriptions(t *testing.T) {
	foreign, err := net.Listen("tcp", "127.0.0.2:0") // another host, which nobody may ask
	if err != nil {
		t.Fatal(err)
	}
	var touched atomic.Int64
	go func() {
		for {
			conn, err := foreign.Accept()
			if err != nil {
				return
			}
			touched.Add(1)
			_ = conn.Close()
		}
	}()
	defer foreign.Close()
	host, port, _ := net.SplitHostPort(foreign.Addr().String())
	p := zmqtest.NewPublisher(t, "")
	defer p.Close()
	at, err := url.Parse(p.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	allowed := at.Port()
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_MAX_MEMORY": "512MiB"}, "--allow-endpoints", "tcp://127.0.0.1:"+allowed)

	sglang := func(host, port, more string) string {
		return fmt.Sprintf(`{"page_size": 4, "kv_events": {"publisher": "zmq", "endpoint_host": %q, "endpoint_port_base": %s, "block_size": 4, "dp_size": 1%s}}`, host, port, more)
	}
	const (
		models  = `{"data": [{"id": "m"}]}`
		metrics = "vllm:cache_config_info{block_size=\"4\",engine=\"0\",num_gpu_blocks=\"9\"} 1.0\n"
	)
	endless := strings.Repeat(" ", 64<<20)
	for name, tc := range map[string]struct {
		answers map[string]string // by path; what begins with http is a redirect
		status  int
		says    string // in the refusal, or among the reasons
	}{
		"honest":                   {map[string]string{"/server_info": sglang("*", allowed, "")}, 201, ""},
		"foreign host":             {map[string]string{"/server_info": sglang(host, port, "")}, 400, "which is not the host of its URL"},
		"foreign name":             {map[string]string{"/server_info": sglang("localhost.example.org", allowed, "")}, 400, "which is not the host of its URL"},
		"foreign vLLM source":      {map[string]string{"/metrics": metrics, "/kv_event_sources": `{"0": {"endpoint": "tcp://` + foreign.Addr().String() + `"}}`}, 400, "which is not the host of its URL"},
		"foreign vLLM replay":      {map[string]string{"/metrics": metrics, "/kv_event_sources": `{"0": {"endpoint": "tcp://*:` + allowed + `", "replay_endpoint": "tcp://` + foreign.Addr().String() + `"}}`}, 400, "which is not the host of its URL"},
		"a file":                   {map[string]string{"/metrics": metrics, "/kv_event_sources": `{"0": {"endpoint": "ipc:///run/secret"}}`}, 400, "cannot be reached over the network"},
		"redirected information":   {map[string]string{"/server_info": "http://" + foreign.Addr().String()}, 400, "redirects are not followed"},
		"redirected models":        {map[string]string{"/server_info": "", "/v1/models": "http://" + foreign.Addr().String()}, 400, "redirects are not followed"},
		"port that is not allowed": {map[string]string{"/server_info": sglang("*", "9", "")}, 201, "not among the allowed endpoints"},
		"load port not allowed":    {map[string]string{"/server_info": sglang("*", allowed, `, "load_endpoint_port_base": 9`)}, 201, "not among the allowed endpoints"},
		"replay port not allowed":  {map[string]string{"/server_info": sglang("*", allowed, `, "replay_endpoint_port_base": 9`)}, 201, "not among the allowed endpoints"},
		"port out of range":        {map[string]string{"/server_info": sglang("*", "70000", "")}, 400, "are not in [1, 65535]"},
		"a million ranks":          {map[string]string{"/server_info": strings.Replace(sglang("*", allowed, ""), `"dp_size": 1`, `"dp_size": 1000000`, 1)}, 400, "its dp_size is 1000000"},
		"text without end":         {map[string]string{"/server_info": endless}, 400, "the answer is too long"},
		"metrics without end":      {map[string]string{"/metrics": strings.Repeat("x 1\n", 16<<20)}, 400, "the answer is too long"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, known := tc.answers[r.URL.Path]
				switch {
				case strings.HasPrefix(text, "http"):
					http.Redirect(w, r, text+r.URL.Path, http.StatusTemporaryRedirect)
				case known && text != "":
					_, _ = io.WriteString(w, text)
				case r.URL.Path == "/v1/models":
					_, _ = io.WriteString(w, models)
				default:
					http.NotFound(w, r)
				}
			}))
			defer engine.Close()
			var a e2e.Answer
			e2e.Eventually(t, "the engine answers in time", func() (err error) {
				if a, err = s.Call(t.Context(), http.MethodPost, "/workers", e2e.Object{"worker_id": 1, "endpoint": engine.URL, "describe": true}); err != nil {
					t.Fatal(err)
				}
				if a.Status == http.StatusCreated {
					s.Must(t, http.StatusOK, http.MethodDelete, "/workers/1", nil, nil)
				}
				if strings.Contains(string(a.Body), context.DeadlineExceeded.Error()) {
					err = errors.New(a.String())
				}
				return err
			})
			if a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) {
				t.Errorf("%v, want %d and %q", a, tc.status, tc.says)
			}
		})
	}
	for _, endpoint := range []string{"http://169.254.169.254", "http://" + foreign.Addr().String(), "http://[fe80::1%25lo]:80"} {
		if a, err := s.Call(t.Context(), http.MethodPost, "/workers", e2e.Object{"worker_id": 2, "endpoint": endpoint, "describe": true}); err != nil || a.Status != http.StatusBadRequest {
			t.Errorf("%s: %v (%v)", endpoint, a, err)
		}
	}
	if n := touched.Load(); n > 0 {
		t.Errorf("another host had %d connections", n)
	}
	checkMemory(t, s)
}
