package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var released = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?:-rc\.(\d+))?$`)

// pythonVersion is a release's version as Python spells it (PEP 440).
func pythonVersion(version string) (string, error) {
	m := released.FindStringSubmatch(version)
	switch {
	case m == nil:
		return "", fmt.Errorf("version %q is not 1.2.3 or 1.2.3-rc.4", version)
	case m[2] != "":
		return m[1] + "rc" + m[2], nil
	}
	return m[1], nil
}

// machines are the names that Python's platform tags have for architectures.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// platformTag says where a static program runs: on every Linux of the machine,
// whatever its C library is. It names the oldest ones that pip knows.
func platformTag(arch string) (string, error) {
	m, ok := machines[arch]
	if !ok {
		return "", fmt.Errorf("no wheels for architecture %q", arch)
	}
	return strings.ReplaceAll("manylinux_2_17_M.manylinux2014_M.musllinux_1_1_M", "M", m), nil
}

// wheel writes a wheel that puts programs beside the Python that it is installed
// for, as scripts of the distribution select-service.
func wheel(args []string, at time.Time) error {
	flags := flag.NewFlagSet("wheel", flag.ContinueOnError)
	out := flags.String("out", "", "folder to write to")
	version := flags.String("version", "", "release, without v")
	arch := flags.String("arch", "", "GOARCH of the programs")
	readme := flags.String("readme", "", "description (Markdown)")
	license := flags.String("license", "", "licence")
	if err := flags.Parse(args); err != nil {
		return err
	}
	release, err := pythonVersion(*version)
	if err != nil {
		return err
	}
	tag, err := platformTag(*arch)
	if err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("wheel: no programs")
	}
	const name = "select_service"
	base := name + "-" + release
	var files []file
	for _, program := range flags.Args() {
		f, err := read(program)
		if err != nil {
			return err
		}
		files = append(files, file{base + ".data/scripts/" + f.name, 0o755, f.content})
	}
	about, err := read(*readme)
	if err != nil {
		return err
	}
	terms, err := read(*license)
	if err != nil {
		return err
	}
	info := base + ".dist-info/"
	files = append(files,
		file{info + "METADATA", 0o644, metadata(release, about.content)},
		file{info + "WHEEL", 0o644, wheelTags(tag)},
		file{info + "licenses/LICENSE", 0o644, terms.content})
	files = append(files, file{info + "RECORD", 0o644, record(files, info+"RECORD")})
	packed, err := zipFile(files, at)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*out, base+"-py3-none-"+tag+".whl"), packed, 0o644)
}

func metadata(version string, description []byte) []byte {
	head := `Metadata-Version: 2.4
Name: select-service
Version: ` + version + `
Summary: Chooses the worker of the next LLM request, by KV cache and load
License-Expression: Apache-2.0
License-File: LICENSE
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Go
Project-URL: Source, https://github.com/select-service/select-service
Requires-Python: >=3.8
Description-Content-Type: text/markdown

`
	return append([]byte(head), description...)
}

// wheelTags has a line for each of the tags that the name of the file joins.
func wheelTags(platforms string) []byte {
	text := "Wheel-Version: 1.0\nGenerator: select-service scripts/dist\nRoot-Is-Purelib: false\n"
	for p := range strings.SplitSeq(platforms, ".") {
		text += "Tag: py3-none-" + p + "\n"
	}
	return []byte(text)
}

// record lists the files of a wheel with their sums; its own line has none.
func record(files []file, self string) []byte {
	var text strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.content)
		fmt.Fprintf(&text, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.content))
	}
	return []byte(text.String() + self + ",,\n")
}

func zipFile(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	w.RegisterCompressor(zip.Deflate, func(to io.Writer) (io.WriteCloser, error) { return flate.NewWriter(to, flate.BestCompression) })
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		h.SetMode(os.FileMode(f.mode))
		to, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
