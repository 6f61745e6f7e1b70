package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/select-service/select-service/test/checks/e2e"
)

// upgradesOf lets the gateway pass on upgrades of a kind.
func upgradesOf(kind string) edit {
	return func(c config) { c.connections()["upgrade_configs"] = []any{object{"upgrade_type": kind}} }
}

// echoes makes an engine accept upgrades: it says hello, and then what it hears, until the client
// closes or says "bye".
func (b *backend) echoes(t *testing.T) {
	b.answer(func(w http.ResponseWriter, _ *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s: %s\r\n\r\nhello\n", engineHeader, b.name)
		for both.Flush() == nil {
			line, err := both.ReadString('\n')
			if err != nil || line == "bye\n" {
				return
			}
			_, _ = both.WriteString(line)
		}
	})
}

// upgraded is an upgraded connection of a client.
type upgraded struct {
	net.Conn
	lines *bufio.Reader
}

// upgrade asks for a WebSocket through Envoy. The answer is 101, or a refusal.
func (b *bed) upgrade(path string, header ...string) (*upgraded, *http.Response) {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.envoy.url, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(e2e.Patience))
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: engines\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n", path, strings.Join(header, ""))
	u := &upgraded{conn, bufio.NewReaderSize(conn, 1<<16)}
	resp, err := http.ReadResponse(u.lines, nil)
	if err != nil {
		b.t.Fatalf("no answer to the upgrade: %v", err)
	}
	return u, resp
}

// hears waits for a line of the engine.
func (u *upgraded) hears(t *testing.T, want string) {
	t.Helper()
	if got, err := u.lines.ReadString('\n'); err != nil || got != want+"\n" {
		t.Fatalf("heard %.40q of %d bytes, %v; want %.40q of %d", got, len(got), err, want, len(want)+1)
	}
}

// says sends lines and waits for their echoes.
func (u *upgraded) says(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if _, err := io.WriteString(u, line+"\n"); err != nil {
			t.Fatal(err)
		}
		u.hears(t, line)
	}
}

// opened is an upgrade that succeeded.
func (b *bed) opened() *upgraded {
	b.t.Helper()
	u, resp := b.upgrade("/v1/realtime") //nolint:bodyclose // upgrade closes the connection
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(resp.Body)
		b.t.Fatalf("answered %d %s", resp.StatusCode, text)
	}
	u.hears(b.t, "hello")
	return u
}

// streams waits until so many streams are open.
func (b *bed) streams(n float64) { b.t.Helper(); b.awaitMetric("select_service_gateway_streams", n) }

// TestUpgrades: WebSockets pass through Envoy and the picker in both directions, also when their
// worker has been removed, until the client or the engine closes them or the picker stops.
func TestUpgrades(t *testing.T) {
	for name, play := range map[string]func(*testing.T){
		"frames":                frames,
		"frames of HTTP/2":      framesOfHTTP2,
		"no response bodies":    framesWithoutResponses,
		"other modes":           upgradeModes,
		"refused by the engine": upgradeRefused,
		"limits":                upgradeLimits,
		"the picker stops":      upgradeStops,
		"a tunnel":              tunnel,
		"expect":                expectContinue,
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "frames" {
				t.Skip("not one of the short ones")
			}
			t.Parallel()
			play(t)
		})
	}
}

func frames(t *testing.T) {
	b := lay(t, setup{engines: 1, envoy: []edit{upgradesOf("websocket")}})
	b.engines[0].echoes(t)
	u := b.opened()
	b.streams(1)
	for i := range 1000 {
		u.says(t, fmt.Sprint("frame ", i))
	}
	u.says(t, strings.Repeat("x", 3<<20))
	b.picker.Must(t, http.StatusOK, http.MethodDelete, "/workers/1", nil, nil)
	u.says(t, "without its worker")
	b.picker.Must(t, http.StatusCreated, http.MethodPost, "/workers", b.workers[0], nil)
	_ = u.Close()
	b.streams(0)

	u = b.opened()
	_, _ = io.WriteString(u, "bye\n")
	if text, err := io.ReadAll(u.lines); err != nil || len(text) != 0 {
		t.Errorf("after the engine has closed: %q, %v", text, err)
	}
	b.streams(0)
	b.idle()
	b.awaitMetric(`select_service_gateway_served_total{endpoint="unknown"}`, 0)
}

// framesOfHTTP2: the client asks for a WebSocket by an extended CONNECT.
func framesOfHTTP2(t *testing.T) {
	b := lay(t, setup{engines: 1, envoy: []edit{upgradesOf("websocket"), func(c config) {
		c.connections()["http2_protocol_options"] = object{"allow_connect": true}
	}}})
	b.engines[0].echoes(t)
	//nolint:staticcheck // net/http's own transport sends no extended CONNECT
	transport := &xhttp2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections) //nolint:staticcheck // as above
	body, frames := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodConnect, b.envoy.url+"/v1/realtime", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{":protocol": {"websocket"}, "Sec-Websocket-Version": {"13"}}
	resp, err := transport.RoundTrip(req) //nolint:staticcheck // as above
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || resp.StatusCode != http.StatusOK || line != "hello\n" {
		t.Fatalf("answered %v, %q, %v", resp, line, err)
	}
	for i := range 100 {
		want := fmt.Sprint("frame ", i, "\n")
		_, _ = io.WriteString(frames, want)
		if line, err := lines.ReadString('\n'); err != nil || line != want {
			t.Fatalf("heard %q, %v", line, err)
		}
	}
	b.streams(1)
	_ = resp.Body.Close() // resets the stream
	_ = frames.Close()
	b.streams(0)
	b.idle()
}

// framesWithoutResponses: response_body_mode NONE.
func framesWithoutResponses(t *testing.T) {
	b := lay(t, setup{engines: 1, envoy: []edit{upgradesOf("websocket"), mode("response_body_mode", "NONE")}})
	b.engines[0].echoes(t)
	u := b.opened()
	u.says(t, "one", "two", strings.Repeat("x", 1<<20))
	_ = u.Close()
	b.streams(0)
	b.idle()
}

// upgradeModes: in other modes an upgrade is refused at once, with the client's status.
func upgradeModes(t *testing.T) {
	for _, request := range []string{"BUFFERED", "STREAMED", "NONE", "BUFFERED_PARTIAL"} {
		t.Run(request, func(t *testing.T) {
			b := lay(t, setup{engines: 1, envoy: []edit{upgradesOf("websocket"), mode("request_body_mode", request)}})
			if _, resp := b.upgrade("/v1/realtime"); resp.StatusCode != http.StatusBadRequest { //nolint:bodyclose // upgrade closes the connection
				t.Errorf("answered %d", resp.StatusCode)
			}
			b.streams(0)
		})
	}
}

// upgradeRefused: what an engine answers instead arrives.
func upgradeRefused(t *testing.T) {
	b := lay(t, setup{engines: 1, envoy: []edit{upgradesOf("websocket")}})
	b.engines[0].answer(says(http.StatusForbidden, "no"))
	if _, resp := b.upgrade("/v1/realtime"); resp.StatusCode != http.StatusForbidden { //nolint:bodyclose // upgrade closes the connection
		t.Errorf("answered %d", resp.StatusCode)
	}
	b.streams(0)
	b.picker.Must(t, http.StatusOK, http.MethodDelete, "/workers/1", nil, nil)
	if _, resp := b.upgrade("/v1/realtime"); resp.StatusCode != http.StatusServiceUnavailable { //nolint:bodyclose // upgrade closes the connection
		t.Errorf("without workers: answered %d", resp.StatusCode)
	}
	b.streams(0)
}

func upgradeLimits(t *testing.T) {
	b := lay(t, setup{engines: 1, service: []string{"--gateway-max-streams", "1"}, envoy: []edit{upgradesOf("websocket")}})
	b.engines[0].echoes(t)
	u := b.opened()
	if _, resp := b.upgrade("/v1/realtime"); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" { //nolint:bodyclose // upgrade closes the connection
		t.Errorf("a second one: answered %d", resp.StatusCode)
	}
	_ = u.Close()
	b.streams(0)
	b.opened()
}

// upgradeStops: a picker that stops cuts upgraded connections when their time is over.
func upgradeStops(t *testing.T) {
	b := lay(t, setup{engines: 1, service: []string{"--gateway-drain-timeout", "3s"}, envoy: []edit{upgradesOf("websocket")}})
	b.engines[0].echoes(t)
	u := b.opened()
	if err := b.picker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the picker refuses new streams", func() error {
		a, err := b.send(t.Context(), http.MethodGet, "/v1/models", nil)
		if err == nil && a.status == http.StatusOK {
			err = errors.New("it does not")
		}
		return err
	})
	u.says(t, "while it drains")
	if text, err := io.ReadAll(u.lines); len(text) != 0 {
		t.Errorf("after the drain: %q, %v", text, err)
	}
	if code, ended := b.picker.Wait(e2e.Patience); !ended || code != 0 {
		t.Errorf("the picker ended %t with %d", ended, code)
	}
}

// tunnel: a plain CONNECT, which Envoy ends: what follows goes to the engine's port.
func tunnel(t *testing.T) {
	b := lay(t, setup{engines: 1, envoy: []edit{upgradesOf("CONNECT"), func(c config) {
		route := objectAt(c.connections(), "route_config", "virtual_hosts", 0, "routes", 0)
		route["match"] = object{"connect_matcher": object{}}
		c.route()["upgrade_configs"] = []any{object{"upgrade_type": "CONNECT", "connect_config": object{}}}
	}}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.envoy.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(e2e.Patience))
	_, _ = io.WriteString(conn, "CONNECT engines:80 HTTP/1.1\r\nHost: engines:80\r\n\r\n")
	lines := bufio.NewReader(conn)
	resp, err := http.ReadResponse(lines, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // the test closes the connection
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("answered %v, %v", resp, err)
	}
	for range 3 {
		_, _ = io.WriteString(conn, "GET /v1/models HTTP/1.1\r\nHost: engines\r\n\r\n")
		resp, err = http.ReadResponse(lines, nil) //nolint:bodyclose // the test closes the connection
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("through the tunnel: %v, %v", resp, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	b.streams(1)
	_ = conn.Close()
	b.streams(0)
}

// expectContinue: Envoy itself asks for the body, which the picker then waits for, with 408 at the
// end of its patience if it does not come.
func expectContinue(t *testing.T) {
	b := lay(t, setup{engines: 1, service: []string{"--gateway-pick-timeout", "2s"}, envoy: []edit{upgradesOf("websocket")}})
	b.post(http.StatusOK, chats, chat("Hello"), "Expect", "100-continue")
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.envoy.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(e2e.Patience))
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: engines\r\nContent-Length: 10\r\n\r\n{", chats)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // the test closes the connection
	if err != nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("answered %v, %v", resp, err)
	}
	b.streams(0)
	b.awaitMetric(`select_service_gateway_requests_total{outcome="body_timeout"}`, 1)
}
