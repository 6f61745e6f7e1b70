package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// blobs are the files of an image layout.
type blobs map[string][]byte

type descriptor struct {
	MediaType string
	Digest    string
	Size      int
	Platform  struct{ Architecture, OS string }
}

// get returns a blob, which has to be what its descriptor says.
func (b blobs) get(t *testing.T, d descriptor) []byte {
	t.Helper()
	content := b["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(content)); got != d.Digest || len(content) != d.Size {
		t.Fatalf("blob %s of %d bytes has %s and %d bytes", d.Digest, d.Size, got, len(content))
	}
	return content
}

func decode[T any](t *testing.T, b []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

type index struct{ Manifests []descriptor }

type manifest struct {
	Config descriptor
	Layers []descriptor
}

type imageConfig struct {
	Architecture string
	Config       struct {
		User       string
		Entrypoint []string
	}
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// untar reads a tar archive.
func untar(t *testing.T, r io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, heads := make(map[string][]byte), make(map[string]*tar.Header)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, heads
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name], heads[h.Name] = content, h
	}
}

// images reads the image archive: the configuration and the files of each architecture.
func images(t *testing.T) (configs map[string]imageConfig, roots map[string]map[string][]byte) {
	t.Helper()
	f, err := os.Open(artefact(t, "select-service-*-image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	files, _ := untar(t, f)
	b := blobs(files)
	configs, roots = make(map[string]imageConfig), make(map[string]map[string][]byte)
	top := decode[index](t, b["index.json"])
	if len(top.Manifests) != 1 {
		t.Fatalf("%d indexes", len(top.Manifests))
	}
	for _, d := range decode[index](t, b.get(t, top.Manifests[0])).Manifests {
		m := decode[manifest](t, b.get(t, d))
		c := decode[imageConfig](t, b.get(t, m.Config))
		if len(m.Layers) != 1 || len(c.RootFS.DiffIDs) != 1 || c.Architecture != d.Platform.Architecture {
			t.Fatalf("%+v, %+v", m, c)
		}
		z, err := gzip.NewReader(bytes.NewReader(b.get(t, m.Layers[0])))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256(raw)); got != c.RootFS.DiffIDs[0] {
			t.Errorf("%s: the layer is %s, the configuration says %s", c.Architecture, got, c.RootFS.DiffIDs[0])
		}
		content, heads := untar(t, bytes.NewReader(raw))
		for name, h := range heads {
			if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 {
				t.Errorf("%s: %s belongs to %d:%d, mode %o: others may change it", c.Architecture, name, h.Uid, h.Gid, h.Mode)
			}
		}
		configs[c.Architecture], roots[c.Architecture] = c, content
	}
	return configs, roots
}

// TestImage proves what is in the image: programs, certificates, the user's name, and
// nothing else, so no shell; and that it does not run as root.
func TestImage(t *testing.T) {
	configs, roots := images(t)
	for arch, c := range configs {
		if c.Config.User != "65532:65532" || !slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/select-service"}) {
			t.Errorf("%s: %+v", arch, c.Config)
		}
		for name := range roots[arch] {
			if !strings.HasSuffix(name, "/") && !strings.HasPrefix(name, "usr/bin/select") &&
				!slices.Contains([]string{"etc/passwd", "etc/group", "etc/ssl/certs/ca-certificates.crt"}, name) {
				t.Errorf("%s: there is %s", arch, name)
			}
		}
		if n := bytes.Count(roots[arch]["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE")); n < 100 {
			t.Errorf("%s: %d authorities", arch, n)
		}
	}
}

// unpacked writes the files of an image to a folder.
func unpacked(t *testing.T, files map[string][]byte) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "rootfs")
	for name, content := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestImageRuns proves that the image serves and stops under runc, as on a node with the
// chart's security: user 65532, no capability, a root that cannot be written to.
func TestImageRuns(t *testing.T) {
	_, roots := images(t)
	needs(t, "runc")
	files, ok := roots[runtime.GOARCH]
	if os.Getuid() != 0 || !ok {
		t.Skip("it needs root, and an image of this architecture")
	}
	root := unpacked(t, files)
	bundle := filepath.Dir(root)
	for dir := bundle; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "runc", "spec", "--bundle", bundle)
	file := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	port := e2e.FreePort(t)
	spec := decode[map[string]any](t, text)
	process := spec["process"].(map[string]any)
	process["terminal"] = false
	process["user"] = map[string]any{"uid": 65532, "gid": 65532}
	process["args"] = []string{"/usr/bin/select-service", "--listen", "127.0.0.1", "--port", strconv.Itoa(port)}
	process["capabilities"] = map[string]any{}
	delete(process, "rlimits")
	spec["root"] = map[string]any{"path": "rootfs", "readonly": true}
	linux := spec["linux"].(map[string]any)
	linux["namespaces"] = slices.DeleteFunc(linux["namespaces"].([]any), func(n any) bool {
		return n.(map[string]any)["type"] == "network" // the test asks over the host's
	})
	if text, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("select-service-test-%d", os.Getpid())
	t.Cleanup(func() { _ = exec.Command("runc", "delete", "--force", id).Run() })
	serves(t, port, exec.Command("runc", "run", "--bundle", bundle, id), func() error {
		var state struct{ PID int }
		state.PID = decode[struct{ PID int }](t, []byte(run(t, "runc", "state", id))).PID
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", state.PID))
		if err != nil {
			return err
		}
		for _, want := range []string{"Uid:\t65532\t65532", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"} {
			if !bytes.Contains(status, []byte(want)) {
				t.Errorf("the process has no %q:\n%s", want, status)
			}
		}
		return exec.Command("runc", "kill", id, "TERM").Run()
	})
}

// TestImageRunsEmulated proves that the program of the other architecture serves and
// stops, under QEMU.
func TestImageRunsEmulated(t *testing.T) {
	_, roots := images(t)
	needs(t, "qemu-aarch64-static")
	files, ok := roots["arm64"]
	if runtime.GOARCH == "arm64" || !ok {
		t.Skip("there is no image of another architecture")
	}
	port := e2e.FreePort(t)
	cmd := exec.Command("qemu-aarch64-static", filepath.Join(unpacked(t, files), "usr/bin/select-service"), "--listen", "127.0.0.1", "--port", strconv.Itoa(port))
	serves(t, port, cmd, func() error { return cmd.Process.Signal(syscall.SIGTERM) })
}
