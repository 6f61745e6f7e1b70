package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// sources is a folder with programs and what else goes into a release, as it may be on
// some machine: made at a time, with modes.
func sources(t *testing.T, at time.Time, mode os.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"programs/select-service": "\x7fELF", "programs/selectctl": "\x7fELF2", "certs.pem": "certificates", "LICENSE": "terms", "README.md": "about",
		"chart/Chart.yaml":  "apiVersion: v2\nversion: \"0.1.0\"\nappVersion: \"0.1.0\"\nkubeVersion: \">=1\"\n",
		"chart/values.yaml": "version: stays\n", "chart/templates/a.yaml": "kind: A\n", "rules.yml": "groups: []\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../rules.yml", filepath.Join(dir, "chart/rules.yml")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// built packs everything from a folder of sources.
func built(t *testing.T, dir string, arch string) map[string][]byte {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	in := func(name string) string { return filepath.Join(dir, name) }
	out := t.TempDir()
	for _, args := range [][]string{
		{"archive", "-out", filepath.Join(out, "a.tar.gz"), "-prefix", "a", "select-service=" + in("programs/select-service"), "LICENSE=" + in("LICENSE")},
		{"chart", "-out", filepath.Join(out, "chart.tgz"), "-version", "1.2.3-rc.4", in("chart")},
		{"image", "-out", filepath.Join(out, "image.tar"), "-name", "x", "-version", "1.2.3", "-certs", in("certs.pem"), "-entrypoint", "select-service", arch + "=" + in("programs")},
		{"wheel", "-out", out, "-version", "1.2.3-rc.4", "-arch", arch, "-readme", in("README.md"), "-license", in("LICENSE"), in("programs/select-service"), in("programs/selectctl")},
	} {
		if err := run(args); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	files := make(map[string][]byte)
	names, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil || len(names) != 4 {
		t.Fatalf("%v, %v", names, err)
	}
	for _, name := range names {
		if files[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestSameBytes proves that times and modes of the sources, and where they are, leave no
// trace in what is packed.
func TestSameBytes(t *testing.T) {
	first := built(t, sources(t, time.Unix(1, 0), 0o700), "amd64")
	second := built(t, sources(t, time.Now(), 0o744), "amd64")
	for name := range first {
		if !bytes.Equal(first[name], second[name]) {
			t.Errorf("%s differs", name)
		}
	}
	if third := built(t, sources(t, time.Unix(1, 0), 0o700), "arm64"); bytes.Equal(first["image.tar"], third["image.tar"]) {
		t.Error("the image of another architecture is the same")
	}
}

// TestChart proves that a chart comes first with its description, as of the version of the
// release, and with files where the source has links.
func TestChart(t *testing.T) {
	z, err := gzip.NewReader(bytes.NewReader(built(t, sources(t, time.Unix(1, 0), 0o600), "amd64")["chart.tgz"]))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	files := make(map[string]string)
	for in := tar.NewReader(z); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		b, readErr := io.ReadAll(in)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		if h.Typeflag != tar.TypeDir {
			names = append(names, h.Name)
		}
		files[h.Name] = string(b)
	}
	want := []string{"select-service/Chart.yaml", "select-service/rules.yml", "select-service/templates/a.yaml", "select-service/values.yaml"}
	if !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if got, want := files["select-service/Chart.yaml"], "apiVersion: v2\nversion: \"1.2.3-rc.4\"\nappVersion: \"1.2.3-rc.4\"\nkubeVersion: \">=1\"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if files["select-service/values.yaml"] != "version: stays\n" || files["select-service/rules.yml"] != "groups: []\n" {
		t.Errorf("%v", files)
	}
}

// TestWheel proves that a wheel has the programs as scripts that may be executed, a name
// that its tags agree with, and sums of all its files.
func TestWheel(t *testing.T) {
	const name = "select_service-1.2.3rc4-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl"
	wheel := built(t, sources(t, time.Unix(1, 0), 0o600), "arm64")[name]
	z, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, f := range z.File {
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = string(b)
		if script := strings.Contains(f.Name, ".data/scripts/"); script != (f.Mode() == 0o755) {
			t.Errorf("%s has mode %v", f.Name, f.Mode())
		}
	}
	const base = "select_service-1.2.3rc4"
	if files[base+".data/scripts/select-service"] != "\x7fELF" || files[base+".data/scripts/selectctl"] != "\x7fELF2" {
		t.Errorf("there is only %v", slices.Sorted(maps.Keys(files)))
	}
	if m := files[base+".dist-info/METADATA"]; !strings.Contains(m, "\nName: select-service\nVersion: 1.2.3rc4\n") || !strings.HasSuffix(m, "\n\nabout") {
		t.Error(m)
	}
	if got := strings.Count(files[base+".dist-info/WHEEL"], "\nTag: py3-none-"); got != 3 {
		t.Errorf("%d tags, want 3", got)
	}
	record := files[base+".dist-info/RECORD"]
	for name, content := range files {
		sum := sha256.Sum256([]byte(content))
		line := fmt.Sprintf("%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(content))
		if strings.HasSuffix(name, "RECORD") {
			line = name + ",,\n"
		}
		if !strings.Contains(record, line) {
			t.Errorf("RECORD lacks %s", line)
		}
	}
}

// TestVersions proves which versions are releases, and how Python spells them.
func TestVersions(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "0.10.0-rc.1": "0.10.0rc1", "v1.2.3": "", "1.2": "", "1.2.3-beta": "", "1.2.3-4-gabcdef": "", "1.2.3-rc.1-dirty": "", "": "",
	} {
		if got, err := pythonVersion(version); got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v; want %q", version, got, err, want)
		}
	}
}

// TestRefused proves that what cannot be packed is an error, not half a release.
func TestRefused(t *testing.T) {
	dir := sources(t, time.Unix(1, 0), 0o600)
	for _, args := range [][]string{
		nil,
		{"push"},
		{"archive", "-out", filepath.Join(dir, "a"), "name"},
		{"archive", "-out", filepath.Join(dir, "a"), "name=" + filepath.Join(dir, "nothing")},
		{"wheel", "-out", dir, "-version", "1.2.3", "-arch", "s390x", filepath.Join(dir, "LICENSE")},
		{"image", "-out", filepath.Join(dir, "i"), "-certs", filepath.Join(dir, "certs.pem"), "-entrypoint", "other", "amd64=" + filepath.Join(dir, "programs")},
	} {
		if run(args) == nil {
			t.Errorf("%v went well", args)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if run([]string{"archive", "-out", filepath.Join(dir, "a"), "LICENSE=" + filepath.Join(dir, "LICENSE")}) == nil {
		t.Error("SOURCE_DATE_EPOCH may be anything")
	}
}
