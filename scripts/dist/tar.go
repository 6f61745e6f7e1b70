package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// file is an entry of an archive; the names of folders end in a slash.
type file struct {
	name    string
	mode    int64
	content []byte
}

// tarball packs files in their order, as root's, with the folders that they are in.
func tarball(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	have := make(map[string]bool)
	add := func(f file) error {
		h := &tar.Header{Name: f.name, Mode: f.mode, ModTime: at, Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: int64(len(f.content))}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(f.content)
		return err
	}
	for _, f := range files {
		for i, c := range f.name {
			if dir := f.name[:i+1]; c == '/' && !have[dir] && dir != f.name {
				have[dir] = true
				if err := add(file{name: dir, mode: 0o755}); err != nil {
					return nil, err
				}
			}
		}
		if err := add(f); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func zipped(raw []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

func writeTarball(name string, files []file, at time.Time) error {
	raw, err := tarball(files, at)
	if err != nil {
		return err
	}
	packed, err := zipped(raw)
	if err != nil {
		return err
	}
	return os.WriteFile(name, packed, 0o644)
}

// tree reads a folder, in the order of names. Links are what they lead to.
func tree(dir string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := read(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		f.name = filepath.ToSlash(rel)
		files = append(files, f)
		return err
	})
	return files, err
}

// read reads a file. Of its mode only this counts: whether its owner may execute it.
func read(name string) (file, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return file{}, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return file{}, err
	}
	f := file{name: filepath.Base(name), mode: 0o644, content: content}
	if info.Mode()&0o100 != 0 {
		f.mode = 0o755
	}
	return f, nil
}

// archive packs files under the names that they are given.
func archive(args []string, at time.Time) error {
	flags := flag.NewFlagSet("archive", flag.ContinueOnError)
	out := flags.String("out", "", "file to write")
	prefix := flags.String("prefix", "", "folder in the archive")
	if err := flags.Parse(args); err != nil {
		return err
	}
	named, err := pairs(flags.Args())
	if err != nil {
		return err
	}
	var files []file
	for _, n := range named {
		f, err := read(n[1])
		if err != nil {
			return err
		}
		f.name = path.Join(*prefix, n[0])
		files = append(files, f)
	}
	return writeTarball(*out, files, at)
}

var chartVersion = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// chart packs a Helm chart as helm package does, as of a version, which is that of
// the chart and of the program.
func chart(args []string, at time.Time) error {
	flags := flag.NewFlagSet("chart", flag.ContinueOnError)
	out := flags.String("out", "", "file to write")
	version := flags.String("version", "", "version of chart and program")
	if err := flags.Parse(args); err != nil {
		return err
	}
	files, err := tree(flags.Arg(0))
	if err != nil {
		return err
	}
	for i, f := range files {
		if f.name == "Chart.yaml" {
			files[i].content = chartVersion.ReplaceAll(f.content, []byte(`${1}: "`+*version+`"`))
		}
		files[i].name = "select-service/" + f.name
	}
	// helm reads Chart.yaml first.
	slices.SortStableFunc(files, func(a, b file) int {
		return first(b) - first(a)
	})
	return writeTarball(*out, files, at)
}

func first(f file) int {
	if f.name == "select-service/Chart.yaml" {
		return 1
	}
	return 0
}
