package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/proxy"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestTLS: clients over TLS choose HTTP/1.1 or HTTP/2, and engines behind https are verified, under the base of their URL.
func TestTLS(t *testing.T) {
	got := make(chan string, 10)
	behind := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Host + r.URL.Path + " " + r.Header.Get("X-Forwarded-Proto")
		_, _ = w.Write([]byte("{}"))
	}))
	defer behind.Close()
	roots := x509.NewCertPool()
	roots.AddCert(behind.Certificate())
	w := start(t)
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Endpoint = new(behind.URL + "/base") }))
	for _, version := range []int{1, 2} {
		secure := proxy.New(proxy.Config{
			ConnectTimeout: time.Minute, Metrics: counts.NewProxied(), Log: zerolog.Nop(),
			TLS: func(string) *tls.Config { return &tls.Config{RootCAs: roots, ServerName: "example.com"} },
		}, w.gateway)
		open := connections.New(connections.Limits{Total: 10})
		open.Configure(secure.HTTP)
		secure.HTTP.Protocols.SetHTTP2(true)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			ended <- secure.Serve(open.Listener(ln, &tls.Config{Certificates: behind.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}))
		}()
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}, ForceAttemptHTTP2: version == 2}
		if version == 1 {
			transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
		r, err := (&http.Client{Transport: transport}).Post("https://"+ln.Addr().String()+chatPath, "application/json", strings.NewReader(chatBody("")))
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if want := strings.TrimPrefix(behind.URL, "https://") + "/base" + chatPath + " https"; r.ProtoMajor != version || r.StatusCode != 200 || <-got != want {
			t.Errorf("%s %d", r.Proto, r.StatusCode)
		}
		transport.CloseIdleConnections()
		secure.Stop(context.Background(), 0, time.Second)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
