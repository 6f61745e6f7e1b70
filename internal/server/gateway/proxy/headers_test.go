package proxy_test

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// asking returns a world whose engine tells what it got, and answers with a text.
func asking(t *testing.T, text string, changes ...func(*settings)) (*world, chan *engineRequest) {
	w := start(t, changes...)
	got := make(chan *engineRequest, 1)
	w.put(startEngine(t, func(s *served) {
		for r := s.read(); r != nil; r = s.read() {
			got <- r
			s.write(text)
		}
	}))
	return w, got
}

// TestRequestHeaders: an engine gets the client's headers but for those about its connection (RFC 9110, section 7.6.1),
// those that steer requests, and what it says of others.
func TestRequestHeaders(t *testing.T) {
	w, got := asking(t, jsonAnswer("{}"))
	w.ask(request(chatPath, chatBody(""),
		"X-Custom", "one", "X-Custom", "two", "Accept-Encoding", "gzip, br", "User-Agent", "tests", "X-Tenant-Id", "blue", "Cookie", "a=b",
		"Authorization", "Bearer mine", "x-session-id", "s",
		// what goes no further
		"Connection", "keep-alive, X-Hop, X-Forwarded-For", "X-Hop", "1", "Keep-Alive", "timeout=5", "TE", "trailers", "Proxy-Authorization", "Basic x",
		"Proxy-Connection", "keep-alive", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABkAAQAAP__",
		"x-gateway-destination-endpoint-subset", "10.0.0.1:1", "x-gateway-destination-endpoint", "10.0.0.1:1", "X-Prefiller-Host-Port", "10.0.0.1:1", "X-Data-Parallel-Rank", "7",
		"X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil", "X-Forwarded-Proto", "https", "Forwarded", "for=6.6.6.6", "X-Real-IP", "6.6.6.6",
	))
	r := <-got
	for name, want := range map[string][]string{
		"X-Custom": {"one", "two"}, "Accept-Encoding": {"gzip, br"}, "User-Agent": {"tests"}, "X-Tenant-Id": {"blue"}, "Cookie": {"a=b"},
		"Authorization": {"Bearer mine"}, "X-Session-Id": {"s"}, "Content-Type": {"application/json"},
		"X-Hop": nil, "Keep-Alive": nil, "Te": nil, "Proxy-Authorization": nil, "Proxy-Connection": nil, "Upgrade": nil, "Http2-Settings": nil, "Connection": nil,
		"X-Gateway-Destination-Endpoint-Subset": nil, "X-Gateway-Destination-Endpoint": nil, "X-Prefiller-Host-Port": nil, "X-Data-Parallel-Rank": nil, "Forwarded": nil, "X-Real-Ip": nil,
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"proxy.example"}, "X-Forwarded-Proto": {"http"},
	} {
		if !slices.Equal(r.Header[name], want) {
			t.Errorf("%s is %q, want %q", name, r.Header[name], want)
		}
	}
	if r.Header.Get("X-Request-Id") == "" || strings.Contains(r.Host, "proxy.example") {
		t.Errorf("the id is %q, the host %q", r.Header.Get("X-Request-Id"), r.Host)
	}
}

// TestNothingAdded: no header tells the engine to compress what the client may not read, and a client's id stays.
func TestNothingAdded(t *testing.T) {
	w, got := asking(t, jsonAnswer("{}"))
	w.ask(request(chatPath, chatBody(""), "X-Request-Id", "mine"))
	names := []string{}
	r := <-got
	for name := range r.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"Content-Length", "Content-Type", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Request-Id"}
	if !slices.Equal(names, want) || r.Header.Get("X-Request-Id") != "mine" {
		t.Errorf("%q, want %q", names, want)
	}
}

// TestTrustedPeer: a load balancer that is trusted says whom it serves.
func TestTrustedPeer(t *testing.T) {
	w, got := asking(t, jsonAnswer("{}"), func(s *settings) { s.Proxy.Trust = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	w.ask(request(chatPath, chatBody(""), "X-Forwarded-For", "192.0.2.1", "X-Forwarded-Host", "outside", "X-Forwarded-Proto", "https"))
	r := <-got
	if strings.Join(r.Header["X-Forwarded-For"], ", ") != "192.0.2.1, 127.0.0.1" || r.Header.Get("X-Forwarded-Host") != "outside" || r.Header.Get("X-Forwarded-Proto") != "https" {
		t.Errorf("%v", r.Header)
	}
}

// TestRanks: an engine with several ranks gets the booked one, and not a client's.
func TestRanks(t *testing.T) {
	w := start(t)
	got := make(chan *engineRequest, 1)
	e := startEngine(t, func(s *served) {
		got <- s.read()
		s.write(jsonAnswer("{}"))
	})
	w.Put(servicetest.Record(1, 2, func(r *catalog.Record) { r.Endpoint = new("http://" + e.address + "/base/") }))
	w.Burden("load", 1, 0, 5, 50)
	w.ask(request(chatPath, chatBody(""), "x-data-parallel-rank", "0"))
	if r := <-got; !slices.Equal(r.Header["X-Data-Parallel-Rank"], []string{"1"}) || r.RequestURI != "/base"+chatPath {
		t.Errorf("%s %v", r.RequestURI, r.Header)
	}
}

// startPair starts an engine that decodes and one that prefills, which only the other one may ask, as workers of w. got is what the one that decodes is asked.
func startPair(t *testing.T, w *world) (decode, prefill *engine, got <-chan *engineRequest) {
	t.Helper()
	requests := make(chan *engineRequest, 1)
	decode, prefill = startEngine(t, func(s *served) {
		requests <- s.read()
		s.write(jsonAnswer("{}"))
	}), startEngine(t, func(s *served) {
		if r := s.read(); r != nil { // nil: it was only looked whether the engine can be reached
			t.Errorf("the engine that prefills was asked %s", r.RequestURI)
		}
	})
	for id, e := range map[uint64]*engine{1: decode, 2: prefill} {
		role := map[uint64]string{1: "decode", 2: "prefill"}[id]
		w.Put(servicetest.Record(id, 1, func(r *catalog.Record) { r.Endpoint, r.Role = new("http://"+e.address), new(role) }))
	}
	return decode, prefill, requests
}

// TestPrefillAndDecode: the request goes to the decode worker, with the other one's address for its sidecar.
func TestPrefillAndDecode(t *testing.T) {
	w := start(t)
	_, prefill, got := startPair(t, w)
	w.ask(request(chatPath, chatBody(""), "x-prefiller-host-port", "10.0.0.1:1"))
	if r := <-got; !slices.Equal(r.Header["X-Prefiller-Host-Port"], []string{prefill.address}) {
		t.Errorf("%v", r.Header)
	}
	w.wantLoads("1:0 2:0")
}

// TestEncodersGetNothing: a worker that only encodes is sent no request, neither alone nor if the request goes elsewhere after another
// worker has refused its connection.
func TestEncodersGetNothing(t *testing.T) {
	w := start(t)
	encoder := answering(t, jsonAnswer("{}"))
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Endpoint, r.Role = new("http://"+encoder.address), new(catalog.RoleEncode) }))
	for _, path := range []string{chatPath, "/v1/embeddings"} {
		if a := w.ask(request(path, chatBody(""))); a.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s, alone: %d %s", path, a.StatusCode, a.body)
		}
	}
	w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Endpoint = new("http://127.0.0.1:1") }))
	if a := w.ask(request(chatPath, chatBody(""))); a.StatusCode < 500 {
		t.Errorf("beside a worker that is gone: %d %s", a.StatusCode, a.body)
	}
	if n := encoder.conns.Load(); n > 0 {
		t.Errorf("%d connections to the one that encodes", n)
	}
}

// TestAnswerHeaders: a client gets the engine's headers, each as often as it came, but for those about its connection,
// also of an answer before the last one.
func TestAnswerHeaders(t *testing.T) {
	hop := "connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: Basic\r\nupgrade: h2c\r\n"
	w, got := asking(t, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n"+hop+"\r\n"+
		"HTTP/1.1 201 Made\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nserver: uvicorn\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\ncontent-encoding: gzip\r\n"+
		"vary: a\r\nvary: b\r\n"+hop+"content-length: 3\r\n\r\n\x1f\x8b\x08")
	a := w.ask(request(chatPath, chatBody(""), "Accept-Encoding", "gzip"))
	<-got
	want := http.Header{
		"Set-Cookie": {"a=1", "b=2"}, "Server": {"uvicorn"}, "Date": {"Thu, 01 Jan 1970 00:00:00 GMT"}, "Content-Encoding": {"gzip"},
		"Vary": {"a", "b"}, "Content-Length": {"3"}, "X-Select-Worker": {"1;dp_rank=0"},
	}
	if a.StatusCode != 201 || a.body != "\x1f\x8b\x08" || len(a.Header) != len(want) {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
	}
	for name, values := range want {
		if !slices.Equal(a.Header[name], values) {
			t.Errorf("%s is %q, want %q", name, a.Header[name], values)
		}
	}
	if len(a.hints) != 1 || a.hints[0].Get("Link") != "</a>" || len(a.hints[0]) != 1 {
		t.Errorf("the hints are %v", a.hints)
	}
}

// TestTrailers: the fields behind a body come through, announced or not, but for those about framing.
func TestTrailers(t *testing.T) {
	w, got := asking(t, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\ntrailer: X-Sum, content-length,transfer-encoding\r\ntrailer: ,host, a b, x-more\r\n\r\n"+
		chunk("{}")+"0\r\nx-sum: 1\r\nx-late: 2\r\ncontent-length: 5\r\n\r\n")
	a := w.ask(request(chatPath, chatBody("")))
	<-got
	if a.body != "{}" || a.err != nil || a.Trailer.Get("X-Sum") != "1" || a.Trailer.Get("X-Late") != "2" || a.Trailer.Get("Content-Length") != "" {
		t.Errorf("%q %v %v", a.body, a.err, a.Trailer)
	}
}

// TestNoBodies: answers that have no body get none.
func TestNoBodies(t *testing.T) {
	for _, head := range []string{"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"} {
		w, got := asking(t, head)
		c := w.dial()
		for range 2 { // the connection goes on
			c.send(request(chatPath, chatBody("")))
			a := c.receive("POST")
			<-got
			if a.body != "" || a.err != nil || a.Header.Get("Transfer-Encoding") != "" {
				t.Errorf("%q: %v %q %v", head, a.Header, a.body, a.err)
			}
		}
		w.wantLoads("1:0")
	}
}

// guarded returns a guard with a token of a caller, and the token.
func guarded(t *testing.T, roles []access.Role) (*access.Guard, string) {
	token := access.NewToken()
	entry, err := access.Grant{Name: "client", Roles: roles}.Entry(token)
	if err != nil {
		t.Fatal(err)
	}
	return guardOf(t, "tokens:\n"+entry), token
}

// TestKeys: where callers need a token, it goes no further; a token for engines takes the client's place.
func TestKeys(t *testing.T) {
	roles, err := access.ParseRoles([]string{"call"})
	if err != nil {
		t.Fatal(err)
	}
	guard, token := guarded(t, roles)
	for name, tt := range map[string]struct {
		guarded, owned bool
		header, value  string
		status         int
		want           []string
	}{
		"none":                      {header: "Authorization", value: "Bearer x", status: 200, want: []string{"Bearer x"}},
		"engines have one":          {owned: true, header: "Authorization", value: "Bearer x", status: 200, want: []string{"Bearer engine"}},
		"clients need one":          {guarded: true, header: "Authorization", value: "Bearer " + token, status: 200},
		"both":                      {guarded: true, owned: true, header: "Authorization", value: "Bearer " + token, status: 200, want: []string{"Bearer engine"}},
		"Anthropic's":               {guarded: true, header: "X-Api-Key", value: token, status: 200},
		"Anthropic's, engines' own": {owned: true, header: "X-Api-Key", value: "x", status: 200, want: []string{"Bearer engine"}},
		"wrong":                     {guarded: true, header: "Authorization", value: "Bearer x", status: 401},
		"missing":                   {guarded: true, header: "X-Other", value: "x", status: 401},
	} {
		t.Run(name, func(t *testing.T) {
			w, got := asking(t, jsonAnswer("{}"), func(s *settings) {
				if tt.guarded {
					s.Proxy.Guard = guard
				}
				if tt.owned {
					s.Proxy.Token = func() string { return "engine" }
				}
			})
			a := w.ask(request(chatPath, chatBody(""), tt.header, tt.value))
			if a.StatusCode != tt.status {
				t.Fatal(a.StatusCode, a.body)
			}
			if tt.status == 200 {
				r := <-got
				if !slices.Equal(r.Header["Authorization"], tt.want) || r.Header.Get("X-Api-Key") != "" {
					t.Errorf("the engine got %v", r.Header)
				}
			} else if !strings.Contains(a.body, `"code":"invalid_api_key"`) {
				t.Error(a.body)
			}
		})
	}
}

// TestWorkerHeader: only callers who may operate workers are told which one answered.
func TestWorkerHeader(t *testing.T) {
	for role, want := range map[string]string{"call": "", "operate": "1;dp_rank=0"} {
		roles, err := access.ParseRoles([]string{role})
		if err != nil {
			t.Fatal(err)
		}
		guard, token := guarded(t, roles)
		w := start(t, func(s *settings) { s.Proxy.Guard = guard })
		w.put(answering(t, jsonAnswer("{}")))
		a := w.ask(request(chatPath, chatBody(""), "Authorization", "Bearer "+token))
		if got := a.Header.Get("X-Select-Worker"); a.StatusCode != 200 || got != want {
			t.Errorf("%s: %d, %q, want %q", role, a.StatusCode, got, want)
		}
	}
}

// TestForeignPages: without tokens a page of another site, or one whose name was made to lead here, gets nothing through
// a browser; programs may use any name. With tokens pages need one as everybody does.
func TestForeignPages(t *testing.T) {
	roles, err := access.ParseRoles([]string{"call"})
	if err != nil {
		t.Fatal(err)
	}
	guard, token := guarded(t, roles)
	for name, tt := range map[string]struct {
		host, header, value string
		guarded             bool
		want                int
	}{
		"a program":              {host: "evil.example", want: 200},
		"another site":           {host: "localhost", header: "Origin", value: "https://evil.example", want: 403},
		"a link":                 {host: "localhost", header: "Sec-Fetch-Site", value: "cross-site", want: 403},
		"a name that leads here": {host: "evil.example", header: "Origin", value: "http://evil.example", want: 403},
		"a page of our own":      {host: "gpu-router:8080", header: "Origin", value: "http://gpu-router:8080", want: 200},
		"a page with a token":    {host: "chat.example", header: "Origin", value: "https://app.example", guarded: true, want: 200},
	} {
		w := start(t, func(s *settings) {
			s.Proxy.Hosts = access.NewHosts(nil, &net.TCPAddr{IP: net.IPv4zero, Port: 1}, nil)
			if tt.guarded {
				s.Proxy.Guard = guard
			}
		})
		w.put(answering(t, jsonAnswer("{}")))
		fields := []string{}
		if tt.header != "" {
			fields = append(fields, tt.header, tt.value)
		}
		if tt.guarded {
			fields = append(fields, "Authorization", "Bearer "+token)
		}
		for path, text := range map[string]string{chatPath: request(chatPath, chatBody(""), fields...), "/v1/models": requestOf("GET", "/v1/models", "", fields...)} {
			r := strings.Replace(text, "Host: proxy.example", "Host: "+tt.host, 1)
			if a := w.ask(r); a.StatusCode != tt.want {
				t.Errorf("%s, %s: %d %s, want %d", name, path, a.StatusCode, a.body, tt.want)
			}
		}
	}
}
