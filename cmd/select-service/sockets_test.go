package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// socketClient is an HTTP client of a unix socket, with HTTP/2 if so wanted.
func socketClient(path string, h2 bool) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	return &http.Client{Transport: tr}
}

// TestSocketFile: the file has its mode whatever the umask, is refused to a second
// process while the first lives, replaced once that was killed, and removed at the end;
// files of others stay.
func TestSocketFile(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(t.TempDir(), "s")
	first, err := listenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := listenSocket(t.Context(), path); err == nil || err.Error() != "another process listens there" {
		t.Errorf("while one listens: %v", err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false) // as if it had been killed
	_ = first.Close()
	second, err := listenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after the end: %v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenSocket(t.Context(), path); err == nil {
		t.Error("a file was replaced")
	}
	if text, _ := os.ReadFile(path); string(text) != "mine" {
		t.Errorf("the file has %q", text)
	}
	if _, err := listenSocket(t.Context(), filepath.Join(path, "s")); err == nil {
		t.Error("a socket in a file")
	}
}

// TestSockets: a process listens on unix sockets beside a port, or alone, speaks both
// versions of HTTP there, asks no host's name, and removes the files at the end.
func TestSockets(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, args := range [][]string{
		{"--listen=127.0.0.1", "--listen=unix://" + a, "--listen", "unix://" + b, "--port=0", "--allowed-hosts=only.this"},
		{"--listen=unix://" + a + ",unix://" + b},
	} {
		p := launch(t, env(), 1, append(args, "--use-kv-events=false")...)
		for _, path := range []string{a, b} {
			for _, h2 := range []bool{false, true} {
				c := socketClient(path, h2)
				answer, err := c.Post("http://any.name/select", "application/json", strings.NewReader(`{"token_ids":[1]}`))
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				if answer.StatusCode != http.StatusServiceUnavailable && answer.StatusCode != http.StatusNotFound || h2 != (answer.ProtoMajor == 2) {
					t.Errorf("%s: %s %s %s", path, answer.Proto, answer.Status, text)
				}
				c.CloseIdleConnections()
			}
		}
		p.stop()
		p.ended()
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	}
}
