package access

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestCheckOrigin: what pages of other sites send is refused, what programs and our
// own address send is not.
func TestCheckOrigin(t *testing.T) {
	for _, tt := range []struct {
		host    string
		tls     bool
		headers []string
		refused bool
	}{
		{"a:8092", false, nil, false},
		{"a:8092", false, []string{"Origin", "http://a:8092"}, false},
		{"a:8092", false, []string{"Origin", "http://A:8092"}, false},
		{"a", false, []string{"Origin", "http://a:80"}, false},
		{"a:443", true, []string{"Origin", "https://a"}, false},
		{"[::1]:80", false, []string{"Origin", "http://[::1]"}, false},
		{"a:8092", false, []string{"Sec-Fetch-Site", "same-origin"}, false},
		{"a:8092", false, []string{"Sec-Fetch-Site", "none"}, false},

		{"a:8092", false, []string{"Origin", "https://a:8092", "Sec-Fetch-Site", "same-origin"}, false}, // a proxy ends the TLS
		{"a", false, []string{"Origin", "https://a", "Sec-Fetch-Site", "same-origin"}, false},

		{"a:8092", false, []string{"Origin", "https://b:8092", "Sec-Fetch-Site", "same-origin"}, true},
		{"a:8092", true, []string{"Origin", "http://a:8092", "Sec-Fetch-Site", "same-origin"}, true},
		{"a:8092", false, []string{"Origin", "null"}, true},
		{"a:8092", false, []string{"Origin", ""}, true},
		{"a:8092", false, []string{"Origin", "http://b:8092"}, true},
		{"a:8092", false, []string{"Origin", "http://a"}, true},
		{"a:8092", false, []string{"Origin", "http://a:8093"}, true},
		{"a:8092", false, []string{"Origin", "https://a:8092"}, true},
		{"a:8092", true, []string{"Origin", "http://a:8092"}, true},
		{"a:8092", false, []string{"Origin", "http://a:8092.evil.example"}, true},
		{"a:8092", false, []string{"Origin", "http://evil@a:8092"}, true},
		{"a:8092", false, []string{"Origin", "a:8092"}, true},
		{"a:8092", false, []string{"Origin", "chrome-extension://a:8092"}, true},
		{"", false, []string{"Origin", "http://"}, true},
		{"a:8092", false, []string{"Origin", "http://a:8092", "Origin", "http://b"}, true},
		{"a:8092", false, []string{"Sec-Fetch-Site", "cross-site"}, true},
		{"a:8092", false, []string{"Sec-Fetch-Site", "same-site"}, true},
		{"a:8092", false, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, true},
		{"a:8092", false, []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Site", "cross-site"}, true},
		{"a:8092", false, []string{"Sec-Fetch-Site", "future"}, true},
		{"a:8092", false, []string{"Origin", "http://a:8092", "Sec-Fetch-Site", "same-site"}, true},
	} {
		r := with(tt.headers...)
		r.Host = tt.host
		if tt.tls {
			r.TLS = &tls.ConnectionState{}
		}
		if err := CheckOrigin(r); (err != nil) != tt.refused || err != nil && status(err) != 403 {
			t.Errorf("%s tls=%v %v: %v", tt.host, tt.tls, tt.headers, err)
		}
	}
}

// TestHosts: by which hosts a listener may be addressed.
func TestHosts(t *testing.T) {
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8092}
	all := &net.TCPAddr{IP: net.IPv4zero, Port: 8092}
	outer := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 8092}
	link := &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 8092, Zone: "eth0"}
	for _, tt := range []struct {
		listener, local net.Addr
		allowed         []string
		host            string
		refused         bool
	}{
		{loopback, loopback, nil, "localhost:8092", false},
		{loopback, loopback, nil, "LOCALHOST.", false},
		{loopback, loopback, nil, "a.localhost", false},
		{loopback, loopback, nil, "127.0.0.1:8092", false},
		{loopback, loopback, nil, "127.9.9.9", false},
		{loopback, loopback, nil, "[::1]:8092", false},
		{loopback, loopback, nil, "machine:1", false},
		{loopback, loopback, nil, "", false},
		{loopback, loopback, []string{"proxy.example"}, "proxy.example", false},
		{loopback, loopback, []string{"*"}, "evil.example", false},
		{all, loopback, nil, "evil.example", false},
		{all, outer, []string{"svc"}, "svc:8092", false},
		{all, outer, []string{"svc"}, "10.1.2.3:8092", false},
		{all, loopback, []string{"svc"}, "localhost", false},
		{all, outer, []string{"2001:db8::1"}, "[2001:db8::1]:80", false},
		{all, link, []string{"svc"}, "[fe80::1]:8092", false},
		{all, link, []string{"svc"}, "[fe80::1%25en0]:8092", false},
		{all, link, []string{"svc"}, "[FE80::1%en0]", false},
		{all, outer, []string{"fe80::9%eth1"}, "[fe80::9%25en0]", false},

		{loopback, loopback, nil, "evil.example", true},
		{loopback, loopback, nil, "evil.example:8092", true},
		{loopback, loopback, nil, "localhost.evil.example", true},
		{loopback, loopback, nil, "127.0.0.1.evil.example", true},
		{loopback, loopback, nil, "notlocalhost", true},
		{loopback, loopback, nil, "10.1.2.3", true},
		{loopback, loopback, nil, "0.0.0.0", true},
		{loopback, loopback, nil, "[fe80::1]", true},
		{loopback, loopback, []string{"proxy.example"}, "evil.example", true},
		{all, link, []string{"svc"}, "[fe80::2%25eth0]:8092", true},
		{all, outer, []string{"svc"}, "localhost", true},
		{all, outer, []string{"svc"}, "127.0.0.1", true},
		{all, outer, []string{"svc"}, "other", true},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tt.local))
		r.Host = tt.host
		if err := NewHosts(tt.allowed, tt.listener, nil, "machine").Check(r); (err != nil) != tt.refused || err != nil && status(err) != 403 {
			t.Errorf("listener %v, connection at %v, allowed %v, host %q: %v", tt.listener, tt.local, tt.allowed, tt.host, err)
		}
	}
}

// TestRebound: on a listener for all addresses, without a list of hosts, a page under a foreign name that
// resolves to this machine can do nothing, whatever it does to the headers that scripts may set. Programs may
// use any name, and a browser every name that is surely this service's.
func TestRebound(t *testing.T) {
	all := &net.TCPAddr{IP: net.IPv4zero, Port: 8092}
	outer := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 8092}
	const agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"
	certified := func(host string) bool { return host == "select.example" }
	for name, tt := range map[string]struct {
		method  string
		headers []string
		browser bool
	}{
		"a form, a fetch":                {"POST", []string{"Origin", "http://HOST"}, true},
		"DELETE":                         {"DELETE", []string{"Origin", "http://HOST", "User-Agent", "curl/8"}, true},
		"GET over https":                 {"GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}, true},
		"a link over https":              {"GET", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, true},
		"GET over http":                  {"GET", []string{"User-Agent", agent, "Accept-Language", "de,en;q=0.5"}, true},
		"HEAD over http":                 {"HEAD", []string{"User-Agent", agent, "Accept-Language", "de"}, true},
		"its language is taken away":     {"GET", []string{"User-Agent", agent, "Accept-Language", ""}, true},
		"its language looks like Node's": {"GET", []string{"User-Agent", "node", "Accept-Language", "*"}, true},
		"it has another agent":           {"GET", []string{"User-Agent", "curl/8", "Accept-Language", "de"}, true},
		"headless, without a language":   {"GET", []string{"User-Agent", agent}, true},

		"curl":                {"GET", []string{"User-Agent", "curl/8.14.1", "Accept", "*/*"}, false},
		"curl posts":          {"POST", []string{"User-Agent", "curl/8.14.1", "Content-Type", "application/json"}, false},
		"Prometheus":          {"GET", []string{"User-Agent", "Prometheus/3.5.0", "Accept", "application/openmetrics-text", "X-Prometheus-Scrape-Timeout-Seconds", "10"}, false},
		"Go":                  {"GET", []string{"User-Agent", "Go-http-client/1.1", "Accept-Encoding", "gzip"}, false},
		"Python":              {"POST", []string{"User-Agent", "python-requests/2.32", "Accept-Encoding", "gzip", "Connection", "keep-alive"}, false},
		"kubelet":             {"GET", []string{"User-Agent", "kube-probe/1.35"}, false},
		"nothing":             {"GET", nil, false},
		"Node's fetch":        {"GET", []string{"User-Agent", "node", "Accept-Language", "*", "Sec-Fetch-Mode", "cors"}, false},
		"Node's fetch posts":  {"POST", []string{"User-Agent", "node", "Accept-Language", "*", "Sec-Fetch-Mode", "cors"}, false},
		"PowerShell":          {"GET", []string{"User-Agent", "Mozilla/5.0 (Windows NT; en-US) WindowsPowerShell/5.1.19041"}, false},
		"a gateway passes on": {"POST", []string{"User-Agent", agent, "Accept-Language", "de"}, false},
	} {
		for host, ours := range map[string]bool{
			"10.9.9.9:8092": true, "[2001:db8::1]:8092": true, "[fe80::1%25eth0]": true, "localhost:8092": true, "a.localhost": true, "selector:8092": true,
			"select.prod.svc": true, "SELECT.prod.svc.cluster.local.:8092": true, "node-7.example": true, "select.example:8092": true,
			"evil.example": false, "evil.example:8092": false, "10.1.2.3.evil.example": false, "selector.evil.example": false, "a.svc.evil.example": false,
			"svc.cluster.local.evil.example": false, "evilsvc.cluster.local.example": false, "asvc.x": false, "select.example.evil.example": false,
		} {
			r := httptest.NewRequest(tt.method, "/", nil)
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(outer)))
			r.Host = host
			for i := 0; i < len(tt.headers); i += 2 {
				r.Header.Set(tt.headers[i], tt.headers[i+1])
			}
			err := NewHosts(nil, all, certified, "node-7.example").Check(r)
			if refused := tt.browser && !ours; (err != nil) != refused || err != nil && status(err) != 403 {
				t.Errorf("%s to %s: %v, to be refused: %t", name, host, err, refused)
			}
			if err := NewHosts([]string{"*"}, all, certified).Check(r); err != nil {
				t.Errorf("%s to %s, where any host is allowed: %v", name, host, err)
			}
		}
	}
}
