package attacks

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// raw sends a request as it is written, on a connection of its own, and returns the
// status and the answer with its head.
func raw(t *testing.T, address, request string) (status int, answer string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.80q: %v", request, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var head strings.Builder
	_ = res.Header.Write(&head) // to memory
	return res.StatusCode, head.String() + string(body)
}

// sent is a request with its headers, one a line.
func sent(method, path, headers, body string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\n%s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		method, path, strings.ReplaceAll(headers, "\n", "\r\n"), len(body), body)
}

// TestForeignSites: a page of another site makes the browser of somebody at the same
// machine send what it likes, with the headers that browsers send then. Nothing is
// changed, no socket is opened, and nothing can be read.
func TestForeignSites(t *testing.T) {
	ports := map[string]int{}
	args := []string{"--listen", "127.0.0.1", "--use-kv-events=false"}
	for _, flag := range []string{"slots-port", "conductor-port"} {
		ports[flag] = e2e.FreePort(t)
		args = append(args, "--"+flag, strconv.Itoa(ports[flag]))
	}
	ports["admin"], ports["debug"] = e2e.FreePort(t), e2e.FreePort(t)
	args = append(args, "--admin-listen", "127.0.0.1:"+strconv.Itoa(ports["admin"]), "--debug-listen", "127.0.0.1:"+strconv.Itoa(ports["debug"]))
	s := e2e.Serve(t, nil, args...)
	at := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	admin := s.At(ports["admin"])
	admin.Must(t, 201, "POST", "/workers", e2e.Object{"worker_id": 1, "endpoint": "http://w:1", "block_size": 16}, nil)
	s.Must(t, 201, "POST", "/reservations", e2e.Object{"reservation_id": "r", "worker_id": 1, "token_ids": []int{1}}, nil)

	bound := e2e.FreePort(t)
	register := fmt.Sprintf(`{"type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0,"endpoint":"tcp://*:%d"}`, bound)
	own := "Host: " + s.Address()
	for name, headers := range map[string]string{
		"form":                   own + "\nOrigin: https://evil.example\nContent-Type: text/plain\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate",
		"fetch without cors":     own + "\nOrigin: https://evil.example\nContent-Type: text/plain\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors",
		"sandboxed frame":        own + "\nOrigin: null\nContent-Type: text/plain",
		"another port":           own + "\nOrigin: http://127.0.0.1:1\nContent-Type: application/json\nSec-Fetch-Site: same-site",
		"extension":              own + "\nOrigin: moz-extension://1234\nContent-Type: application/json",
		"before Sec-Fetch":       own + "\nOrigin: http://evil.example\nContent-Type: application/json",
		"image":                  own + "\nSec-Fetch-Site: cross-site\nSec-Fetch-Dest: image\nContent-Type: text/plain",
		"rebound name":           "Host: evil.example:8092\nOrigin: http://evil.example:8092\nSec-Fetch-Site: same-origin\nContent-Type: application/json",
		"rebound name, old":      "Host: evil.example\nContent-Type: application/json",
		"rebound, looks like us": "Host: 127.0.0.1.evil.example\nContent-Type: application/json",
		"rebound to all":         "Host: 0.0.0.0:8092\nContent-Type: application/json",
	} {
		for _, try := range []struct {
			port               int
			method, path, body string
		}{
			{0, "POST", "/conductor/register", register},
			{ports["conductor-port"], "POST", "/register", register},
			{0, "POST", "/reservations/r/prefill_complete", ""},
			{0, "DELETE", "/reservations/r", ""},
			{0, "POST", "/v1.6/reservations/r/renew", ""},
			{ports["slots-port"], "POST", "/free", `{"model_name":"default","request_id":"r"}`},
			{ports["admin"], "DELETE", "/workers/1", ""},
			{ports["admin"], "PUT", "/workers", `{"workers":[]}`},
			{ports["debug"], "GET", "/debug/pprof/heap", ""},
			{0, "GET", "/workers", ""},
			{0, "GET", "/dump", ""},
			{0, "GET", "/metrics", ""},
			{0, "GET", "/openapi.yaml", ""},
			{0, "HEAD", "/health", ""},
			{0, "GET", "/ready", ""},
			{0, "OPTIONS", "/workers", ""},
			{0, "GET", "/none", ""},
			{0, "GET", "//workers", ""},
		} {
			address := s.Address()
			if try.port != 0 {
				address = at(try.port)
			}
			status, answer := raw(t, address, sent(try.method, try.path, headers, try.body))
			if status != 403 || strings.Contains(answer, "Access-Control-") {
				t.Errorf("%s: %s %s: %d %.200s", name, try.method, try.path, status, answer)
			}
		}
	}
	var workers []e2e.Object
	if s.Must(t, 200, "GET", "/workers", nil, &workers); len(workers) != 1 {
		t.Errorf("the workers are %v", workers)
	}
	s.Must(t, 200, "POST", "/reservations/r/prefill_complete", nil, nil)
	if conn, err := net.Dial("tcp", at(bound)); err == nil {
		_ = conn.Close()
		t.Error("a foreign page has opened a socket")
	}
	// What is no browser's, or our own, is served as ever.
	for _, headers := range []string{
		own, "Host: localhost", own + "\nOrigin: http://" + s.Address() + "\nSec-Fetch-Site: same-origin", own + "\nSec-Fetch-Site: none",
	} {
		if status, answer := raw(t, s.Address(), sent("GET", "/workers", headers, "")); status != 200 {
			t.Errorf("%q: %d %s", headers, status, answer)
		}
	}
	if status, _ := raw(t, s.Address(), "GET /health HTTP/1.0\r\n\r\n"); status != 200 {
		t.Errorf("a probe without Host: %d", status)
	}
}

// TestRebound: the service listens on all addresses, as it does by default, and a page makes its own name lead
// there. Browsers send what they do for a page's own host, over plain HTTP without Sec-Fetch headers. Nothing
// is changed or read on any path, and programs go on to use any name.
func TestRebound(t *testing.T) {
	slots, conductor := e2e.FreePort(t), e2e.FreePort(t)
	s := e2e.Serve(t, nil, "--use-kv-events=false", "--slots-port", strconv.Itoa(slots), "--conductor-port", strconv.Itoa(conductor))
	at := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	s.Must(t, 201, "POST", "/workers", e2e.Object{"worker_id": 1, "endpoint": "http://w:1", "block_size": 16}, nil)
	bound := e2e.FreePort(t)
	register := fmt.Sprintf(`{"type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0,"endpoint":"tcp://*:%d"}`, bound)
	const chromium = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36\nAccept-Language: en-US,en;q=0.9"
	for _, host := range []string{"evil.example:8092", "evil.example", "127.0.0.1.evil.example", "select-service.svc.evil.example"} {
		for _, try := range []struct{ address, method, path, body string }{
			{s.Address(), "DELETE", "/workers/1", ""},
			{s.Address(), "PUT", "/workers", `{"workers":[]}`},
			{s.Address(), "POST", "/conductor/register", register},
			{at(conductor), "POST", "/register", register},
			{at(slots), "POST", "/free", `{"model_name":"default","request_id":"r"}`},
			{s.Address(), "GET", "/workers", ""},
			{s.Address(), "GET", "/v1.6/decisions", ""},
			{s.Address(), "GET", "/dump", ""},
			{s.Address(), "GET", "/metrics", ""},
			{s.Address(), "GET", "/ui/", ""},
			{s.Address(), "HEAD", "/ready", ""},
			{s.Address(), "GET", "/none", ""},
			{at(slots), "GET", "/workers", ""},
		} {
			headers := "Host: " + host + "\n" + chromium
			if try.method != "GET" && try.method != "HEAD" {
				headers += "\nOrigin: http://" + host + "\nContent-Type: text/plain"
			}
			if status, answer := raw(t, try.address, sent(try.method, try.path, headers, try.body)); status != 403 {
				t.Errorf("%s %s of %s: %d %.200s", try.method, try.path, host, status, answer)
			}
		}
	}
	if conn, err := net.Dial("tcp", at(bound)); err == nil {
		_ = conn.Close()
		t.Error("a foreign page has opened a socket")
	}
	for headers, request := range map[string]string{
		"Host: select.prod.example:8092\nUser-Agent: curl/8.14.1\nAccept: */*":               "GET /workers",
		"Host: select.prod.example:8092\nUser-Agent: Prometheus/3.5.0":                       "GET /metrics",
		"Host: select.prod.example\nContent-Type: application/json\nUser-Agent: gateway/1.0": "POST /v1.6/explain",
		"Host: selector:8092\n" + chromium:                                                   "GET /workers",
		"Host: select-service.prod.svc:8092\n" + chromium:                                    "GET /ui/",
		"Host: " + s.Address() + "\nOrigin: http://" + s.Address() + "\n" + chromium:         "GET /fleet",
	} {
		method, path, _ := strings.Cut(request, " ")
		body := ""
		if method == "POST" {
			body = `{"token_ids":[1]}`
		}
		if status, answer := raw(t, s.Address(), sent(method, path, headers, body)); status == 403 || status >= 500 && status != 503 {
			t.Errorf("%s with %q: %d %.200s", request, headers, status, answer)
		}
	}
	var workers []e2e.Object
	if s.Must(t, 200, "GET", "/workers", nil, &workers); len(workers) != 1 {
		t.Errorf("the workers are %v", workers)
	}
}
