// Command sbom writes what a Go program is made of, as its build information has it,
// in CycloneDX JSON: the modules with versions and sums, the compiler, and libzmq
// where it is linked with that.
//
//	sbom [-version V] PROGRAM
//	sbom -version V -artefact FILE [-component PURL]… [PROGRAM…]
//
// The second form is about a file that has the programs in it, or that needs the
// components. Without -version the program is asked.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

type bom struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	version := flags.String("version", "", "version of the programs")
	artefact := flags.String("artefact", "", "the file that this is about")
	var needs []component
	flags.Func("component", "purl of something that the file needs (repeatable)", func(purl string) error {
		c, err := fromPURL(purl)
		needs = append(needs, c)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := bom{Format: "CycloneDX", Spec: "1.6", Version: 1}
	if *artefact == "" {
		if flags.NArg() != 1 {
			return errors.New("one program, or -artefact")
		}
		parts, err := program(flags.Arg(0), *version)
		if err != nil {
			return err
		}
		b.Metadata.Component, b.Components = parts[0], parts[1:]
		return write(b)
	}
	content, err := os.ReadFile(*artefact)
	if err != nil {
		return err
	}
	b.Metadata.Component = component{
		Type: "file", Name: filepath.Base(*artefact), Version: *version,
		Hashes: []hash{{"SHA-256", fmt.Sprintf("%x", sha256.Sum256(content))}},
	}
	b.Components = needs
	for _, name := range flags.Args() {
		parts, err := program(name, *version)
		if err != nil {
			return err
		}
		for _, part := range parts { // programs of one module share most
			if !slices.ContainsFunc(b.Components, func(c component) bool { return c.PURL == part.PURL }) {
				b.Components = append(b.Components, part)
			}
		}
	}
	return write(b)
}

func write(b bom) error {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(b)
}

// program lists a program, then what is in it.
func program(file, version string) ([]component, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if version == "" { // the build information has none
		text, err := output(file, "--version")
		if err != nil {
			return nil, err
		}
		_, version, _ = strings.Cut(text, " ")
	}
	main := module("application", info.Main.Path, version, "")
	if dir, ok := strings.CutPrefix(info.Path, info.Main.Path+"/"); ok {
		main.Name, main.PURL = info.Path, main.PURL+"#"+dir
	}
	parts := []component{
		main,
		module("library", "std", strings.TrimPrefix(info.GoVersion, "go"), ""),
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		parts = append(parts, module("library", dep.Path, dep.Version, dep.Sum))
		if dep.Path == "github.com/pebbe/zmq4" { // a binding
			version, err := output("pkg-config", "--modversion", "libzmq")
			if err != nil {
				return nil, err
			}
			parts = append(parts, component{Type: "library", Name: "libzmq", Version: version, PURL: "pkg:generic/libzmq@" + version})
		}
	}
	return parts, nil
}

// fromPURL is the component of a package URL, pkg:TYPE/NAME[@VERSION][?…].
func fromPURL(purl string) (component, error) {
	name, ok := strings.CutPrefix(purl, "pkg:")
	if !ok {
		return component{}, fmt.Errorf("%q is no package URL", purl)
	}
	name, _, _ = strings.Cut(name, "?")
	kind, name, _ := strings.Cut(name, "/")
	name, version, _ := strings.Cut(name, "@")
	version, err := url.PathUnescape(version)
	if err != nil {
		return component{}, fmt.Errorf("%q: %w", purl, err)
	}
	c := component{Type: "library", Name: name, Version: version, PURL: purl}
	if kind == "oci" {
		c.Type = "container"
	}
	return c, nil
}

// output is what a command writes, in one line.
func output(command string, args ...string) (string, error) {
	text, err := exec.Command(command, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	return strings.TrimSpace(string(text)), nil
}

func module(kind, path, version, sum string) component {
	c := component{Type: kind, Name: path, Version: version, PURL: "pkg:golang/" + path + "@" + version}
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	return c
}
