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
		if err := NewHosts(tt.allowed, tt.listener, "machine").Check(r); (err != nil) != tt.refused || err != nil && status(err) != 403 {
			t.Errorf("listener %v, connection at %v, allowed %v, host %q: %v", tt.listener, tt.local, tt.allowed, tt.host, err)
		}
	}
}
