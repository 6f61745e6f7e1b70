// Command sbom writes what a Go program is made of, as its build information has it,
// in CycloneDX JSON: the modules with versions and sums, the compiler, and libzmq
// where it is linked with that.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
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
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	release, err := output(program, "--version") // the build information has none
	if err != nil {
		return err
	}
	_, release, _ = strings.Cut(release, " ")
	b := bom{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata:   metadata{module("application", info.Main.Path, release, "")},
		Components: []component{module("library", "std", strings.TrimPrefix(info.GoVersion, "go"), "")},
	}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		b.Components = append(b.Components, module("library", dep.Path, dep.Version, dep.Sum))
		if dep.Path == "github.com/pebbe/zmq4" { // a binding
			version, err := output("pkg-config", "--modversion", "libzmq")
			if err != nil {
				return err
			}
			b.Components = append(b.Components, component{Type: "library", Name: "libzmq", Version: version, PURL: "pkg:generic/libzmq@" + version})
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(b)
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
