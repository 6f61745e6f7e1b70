package kubetest

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
)

// Offline returns a server that is reached by its RoundTrip alone, without a network: in a bubble of
// testing/synctest its clients wait in no time.
func Offline(t testing.TB) *Server {
	s := newServer()
	t.Cleanup(s.Kill)
	return s
}

// IsOffline reports whether the server is one of Offline.
func (s *Server) IsOffline() bool { return s.http == nil }

// RoundTrip implements http.RoundTripper: the server answers as over a connection of its own.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	killed := s.killed
	s.mu.Unlock()
	if killed {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	ctx, cancel := context.WithCancel(r.Context())
	body, to := io.Pipe()
	w := &pipeWriter{to: to, header: make(http.Header), began: make(chan struct{})}
	context.AfterFunc(ctx, func() { _ = to.CloseWithError(context.Cause(ctx)) })
	go func() {
		s.ServeHTTP(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK)
		_ = to.Close()
		cancel()
	}()
	<-w.began
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.header, ContentLength: -1,
		Body: pipeBody{body, cancel}, Request: r,
	}, nil
}

// pipeWriter is the server's side of an answer.
type pipeWriter struct {
	to     *io.PipeWriter
	header http.Header
	once   sync.Once
	status int
	began  chan struct{} // closed once status and header are final
}

// Header implements http.ResponseWriter.
func (w *pipeWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *pipeWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status = status
		close(w.began)
	})
}

// Write implements http.ResponseWriter.
func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.to.Write(p)
}

// Flush implements http.Flusher.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }

// pipeBody is the client's side.
type pipeBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b pipeBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
