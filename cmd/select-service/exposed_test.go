package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
)

// TestWarnOfFiles: each file with secrets that others may use is a warning that names it
// and its mode.
func TestWarnOfFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var conf config.Config
	conf.TLS.Key, conf.Access.TokensFile = file("tls.key", 0o640), file("tokens", 0o600)
	conf.TLS.PeerKey, conf.Replicas.PeerTokenFile = file("peer.key", 0o604), filepath.Join(dir, "missing")
	conf.Fleet.Key, conf.Fleet.Credentials = file("fleet.key", 0o644), file("fleet.creds", 0o602)
	conf.Data.Dir = filepath.Join(dir, "data")
	if err := os.Mkdir(conf.Data.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	warnings := func() string {
		var out bytes.Buffer
		warnOfFiles(conf, zerolog.New(&out))
		return out.String()
	}
	got := warnings()
	want := []string{`tls.key","mode":"0640"`, `peer.key","mode":"0604"`, `fleet.key","mode":"0644"`, `fleet.creds","mode":"0602"`}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("no warning of %s: %s", w, got)
		}
	}
	if n := strings.Count(got, "\n"); n != len(want) {
		t.Errorf("%d warnings: %s", n, got)
	}
	if err := os.Chmod(conf.Data.Dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if got := warnings(); !strings.Contains(got, `data","mode":"0770"`) {
		t.Errorf("warnings: %s", got)
	}
}

// TestWarnOfPublisher: a publisher that other hosts reach is a warning, until peers are
// restricted.
func TestWarnOfPublisher(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas config.Replicas
		access   config.Access
		want     bool
	}{
		"none":      {},
		"port":      {replicas: config.Replicas{SyncPort: 9092}, want: true},
		"address":   {replicas: config.Replicas{SyncBind: "tcp://10.0.0.5:9092"}, want: true},
		"loopback":  {replicas: config.Replicas{SyncBind: "tcp://127.0.0.1:9092"}},
		"loopback6": {replicas: config.Replicas{SyncBind: "tcp://[::1]:9092"}},
		"ipc":       {replicas: config.Replicas{SyncBind: "ipc:///run/replica"}},
		"peers":     {replicas: config.Replicas{SyncPort: 9092}, access: config.Access{AllowEndpoints: []string{"tcp://10.0.0.0/8"}}},
	} {
		var out bytes.Buffer
		warnOfPublisher(config.Config{Replicas: tc.replicas, Access: tc.access}, zerolog.New(&out))
		if got := out.Len() > 0; got != tc.want {
			t.Errorf("%s: %q", name, out.String())
		}
	}
}
