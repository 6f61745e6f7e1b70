package packages

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// files returns the files of the release, with their sums.
func files(t *testing.T) (dist string, sums map[string]string) {
	t.Helper()
	dist = filepath.Dir(artefact(t, "SHA256SUMS"))
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	sums = make(map[string]string)
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dist, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sums[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(content))
	}
	return dist, sums
}

// TestChecksums proves that SHA256SUMS lists every file but itself and its signature.
func TestChecksums(t *testing.T) {
	dist, sums := files(t)
	text, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	delete(sums, "SHA256SUMS")
	delete(sums, "SHA256SUMS.sig")
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if sums[name] != sum {
			t.Errorf("%s has %s, listed is %s", name, sums[name], sum)
		}
		delete(sums, name)
	}
	if len(sums) > 0 {
		t.Errorf("not listed: %v", sums)
	}
}

// TestStatements proves that each artefact has a CycloneDX document of it, and that the
// provenance names all of them by their sums.
func TestStatements(t *testing.T) {
	dist, sums := files(t)
	provenance := filepath.Base(artefact(t, "*.intoto.jsonl"))
	var s struct {
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	read := func(name string, v any) {
		text, err := os.ReadFile(filepath.Join(dist, name))
		if err == nil {
			err = json.Unmarshal(text, v)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	read(provenance, &s)
	if d := s.Predicate.BuildDefinition.ResolvedDependencies; s.PredicateType != "https://slsa.dev/provenance/v1" || len(d) == 0 || len(d[0].Digest["gitCommit"]) != 40 {
		t.Errorf("provenance: %+v", s)
	}
	subjects := make(map[string]string)
	for _, subject := range s.Subject {
		subjects[subject.Name] = subject.Digest["sha256"]
	}
	for name, sum := range sums {
		if strings.HasPrefix(name, "SHA256SUMS") || name == provenance || strings.HasSuffix(name, ".cdx.json") {
			continue
		}
		if subjects[name] != sum {
			t.Errorf("the provenance has %s of %s", subjects[name], name)
		}
		var b struct {
			BOMFormat string
			Metadata  struct {
				Component struct {
					Name   string
					Hashes []struct{ Alg, Content string }
				}
			}
			Components []struct{ Name string }
		}
		read(name+".cdx.json", &b)
		if c := b.Metadata.Component; b.BOMFormat != "CycloneDX" || c.Name != name || len(c.Hashes) != 1 || c.Hashes[0].Content != sum || len(b.Components) == 0 {
			t.Errorf("the SBOM of %s is of %+v", name, c)
		}
		delete(subjects, name)
	}
	if len(subjects) > 0 {
		t.Errorf("the provenance names %v, which are not there", subjects)
	}
}

// TestSignature proves that the signature is of the checksums and by the key.
func TestSignature(t *testing.T) {
	sig, key := artefact(t, "SHA256SUMS.sig"), os.Getenv("SELECT_SERVICE_SIGN_PUB")
	if key == "" {
		t.Skip("SELECT_SERVICE_SIGN_PUB, the public key, is not set")
	}
	raw := filepath.Join(t.TempDir(), "sig")
	run(t, "sh", "-c", "base64 -d <"+sig+" >"+raw)
	run(t, "openssl", "dgst", "-sha256", "-verify", key, "-signature", raw, artefact(t, "SHA256SUMS"))
	if err := exec.CommandContext(t.Context(), "openssl", "dgst", "-sha256", "-verify", key, "-signature", raw, raw).Run(); err == nil {
		t.Error("the signature is of anything")
	}
}

// TestRepeatable proves that the same commit gives the same release in another folder,
// without anything that was built before. SELECT_SERVICE_DIST_AGAIN is what the second
// build has made.
func TestRepeatable(t *testing.T) {
	again := os.Getenv("SELECT_SERVICE_DIST_AGAIN")
	_, sums := files(t)
	if again == "" {
		t.Skip("SELECT_SERVICE_DIST_AGAIN is not set: make test-packages")
	}
	for name, sum := range sums {
		content, err := os.ReadFile(filepath.Join(again, name))
		switch got := fmt.Sprintf("%x", sha256.Sum256(content)); {
		case errors.Is(err, os.ErrNotExist) && name == "SHA256SUMS.sig": // nor would it be equal
		case err != nil:
			t.Error(err)
		case got != sum && name != "SHA256SUMS.sig":
			t.Errorf("%s differs", name)
		}
	}
}

// TestGoInstall proves that go install of a version builds the program from the module
// proxy's form of the module, and that it says the version.
func TestGoInstall(t *testing.T) {
	artefact(t, "SHA256SUMS") // it is slow: only beside a release
	needs(t, "git", "go")
	root, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/select-service/select-service"
	// Go remembers which files a version has: another commit needs another one.
	version := "v0.0.1-test.g" + strings.TrimSpace(run(t, "git", "-C", root, "rev-parse", "--short=12", "HEAD"))
	proxy := t.TempDir()
	at := filepath.Join(proxy, module, "@v")
	if err := os.MkdirAll(at, 0o750); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": []byte(`{"Version": "` + version + `"}`), version + ".mod": mod,
	} {
		if err := os.WriteFile(filepath.Join(at, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A module has neither other modules nor links.
	args := []string{"-C", root, "archive", "--format=zip", "--prefix=" + module + "@" + version + "/", "-o", filepath.Join(at, version+".zip"), "HEAD", "--", "."}
	for line := range strings.Lines(run(t, "git", "-C", root, "ls-files", "-s")) {
		mode, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if dir, ok := strings.CutSuffix(name, "/go.mod"); ok {
			args = append(args, ":!"+dir)
		} else if strings.HasPrefix(mode, "120000") {
			args = append(args, ":!"+name)
		}
	}
	run(t, "git", args...)

	dir := t.TempDir()
	upstream := strings.TrimSpace(run(t, "go", "env", "GOPROXY"))
	install := exec.CommandContext(t.Context(), "go", "install", module+"/cmd/select-service@"+version)
	install.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "GOFLAGS=") }),
		"GOPROXY=file://"+proxy+","+upstream, "GONOSUMDB="+module, "GOBIN="+dir, "GOFLAGS=-trimpath", "CGO_ENABLED=0")
	install.Dir = dir
	cache := strings.TrimSpace(run(t, "go", "env", "GOMODCACHE"))
	t.Cleanup(func() { // it is no version of the world's
		_ = exec.Command("chmod", "-R", "u+w", filepath.Join(cache, module+"@"+version)).Run()
		_ = os.RemoveAll(filepath.Join(cache, module+"@"+version))
		_ = os.RemoveAll(filepath.Join(cache, "cache/download", module))
	})
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := run(t, filepath.Join(dir, "select-service"), "--version"); got != "select-service "+version+"\n" {
		t.Errorf("it says %q", got)
	}
}
