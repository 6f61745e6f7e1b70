// Command build bundles the operators' page: web → dist. Without -write it only compares, and
// fails if the bundle is not what the sources give. It is a module of its own, so that the
// service does not depend on the bundler.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	write := flag.Bool("write", false, "write the bundle")
	flag.Parse()
	if err := run("../web", "../dist", *write); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

// copied are the files that the bundle takes as they are, by their names in it.
var copied = map[string]string{
	"index.html": "index.html",
	"icon.svg":   "icon.svg",
}

// licences are those of the libraries in the bundle, which its licences.txt repeats.
var licences = []string{"preact", "uplot"}

func run(web, dist string, write bool) error {
	files, err := bundle(web)
	if err != nil {
		return err
	}
	if write {
		if err := os.MkdirAll(dist, 0o755); err != nil {
			return err
		}
	}
	var stale []error
	for name, text := range files {
		path := filepath.Join(dist, name)
		old, err := os.ReadFile(path)
		if err == nil && bytes.Equal(old, text) {
			continue
		}
		if !write {
			stale = append(stale, fmt.Errorf("%s is stale: run go generate ./internal/server/ui", name))
		} else if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	present, err := os.ReadDir(dist)
	if err != nil {
		return err
	}
	for _, e := range present {
		if _, ok := files[e.Name()]; ok {
			continue
		}
		if !write {
			stale = append(stale, fmt.Errorf("%s does not belong to the bundle", e.Name()))
		} else if err := os.Remove(filepath.Join(dist, e.Name())); err != nil {
			return err
		}
	}
	slices.SortFunc(stale, func(a, b error) int { return bytes.Compare([]byte(a.Error()), []byte(b.Error())) })
	return errors.Join(stale...)
}

// bundle returns the files of the page by name.
func bundle(web string) (map[string][]byte, error) {
	root, err := filepath.Abs(web)
	if err != nil {
		return nil, err
	}
	result := api.Build(api.BuildOptions{
		AbsWorkingDir: root,
		EntryPointsAdvanced: []api.EntryPoint{
			{InputPath: "src/main.tsx", OutputPath: "app"},
			{InputPath: "src/style.css", OutputPath: "style"},
		},
		Outdir: "dist", // nothing is written
		Alias: map[string]string{
			"preact":       "./vendor/preact/preact.mjs",
			"preact/hooks": "./vendor/preact/hooks.mjs",
			"uplot":        "./vendor/uplot/uPlot.esm.js",
		},
		Bundle: true, Format: api.FormatESModule, Target: api.ES2022, Charset: api.CharsetUTF8,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true,
		JSX: api.JSXTransform, JSXFactory: "h", JSXFragment: "Fragment",
		LegalComments: api.LegalCommentsNone, TsconfigRaw: "{}",
	})
	var faults []error
	for _, m := range slices.Concat(result.Errors, result.Warnings) {
		where := ""
		if m.Location != nil {
			where = fmt.Sprintf("%s:%d: ", m.Location.File, m.Location.Line)
		}
		faults = append(faults, errors.New(where+m.Text))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	files := make(map[string][]byte)
	for _, f := range result.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	for name, source := range copied {
		if files[name], err = os.ReadFile(filepath.Join(root, source)); err != nil {
			return nil, err
		}
	}
	var texts bytes.Buffer
	for _, library := range licences {
		text, err := os.ReadFile(filepath.Join(root, "vendor", library, "LICENSE"))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&texts, "%s\n\n%s\n", library, bytes.TrimSpace(text))
	}
	files["licences.txt"] = texts.Bytes()
	return files, nil
}
