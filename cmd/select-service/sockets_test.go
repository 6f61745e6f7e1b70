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

// TestSocketLock: of processes that start at the same time on a path where a killed one has
// left its file one has the socket, and the others say why not. What others lock in the
// directory is nothing to them, and no file is left.
func TestSocketLock(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	killed, err := listenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	killed.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = killed.Close()
	for _, other := range []string{dir, filepath.Join(dir, "other.lock")} {
		if other != dir {
			if err := os.WriteFile(other, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		locked, err := os.Open(other)
		if err != nil {
			t.Fatal(err)
		}
		defer locked.Close()
		if err := unix.Flock(int(locked.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	const starts = 8
	results := make(chan error, starts)
	listeners := make(chan net.Listener, starts)
	for range starts {
		go func() {
			ln, err := listenSocket(t.Context(), path)
			if err == nil {
				listeners <- ln
			}
			results <- err
		}()
	}
	refused := 0
	for range starts {
		if err := <-results; err != nil {
			refused++
			if text := err.Error(); text != "another process listens there" && text != path+".lock is locked by another process" {
				t.Error(err)
			}
		}
	}
	if refused != starts-1 {
		t.Fatalf("%d of %d are refused", refused, starts)
	}
	_ = (<-listeners).Close()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "other.lock" {
		t.Errorf("%v are left, %v", left, err)
	}
	held, err := lockSocket(t.Context(), path+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer held()
	if _, err := listenSocket(t.Context(), path); err == nil || err.Error() != path+".lock is locked by another process" {
		t.Errorf("while another starts: %v", err)
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
