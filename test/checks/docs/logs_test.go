package docs_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the tables of docs/run/logs.md and docs/reference/metrics.md")

// logLine is what the code logs under one message.
type logLine struct {
	levels, fields map[string]struct{}
}

// TestLogs proves that docs/run/logs.md has every message that the service logs, with its level and its
// fields, so that a change of them is seen.
func TestLogs(t *testing.T) {
	lines := make(map[string]*logLine)
	for _, dir := range []string{"../../../cmd/select-service", "../../../internal", "../../../pkg"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					noteLog(lines, call)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var table strings.Builder
	table.WriteString("| Message | Level | Fields |\n|---|---|---|\n")
	for _, text := range slices.Sorted(maps.Keys(lines)) {
		l := lines[text]
		if len(l.levels) == 0 {
			l.levels["varies"] = struct{}{}
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", text, strings.Join(slices.Sorted(maps.Keys(l.levels)), ", "), strings.Join(slices.Sorted(maps.Keys(l.fields)), ", "))
	}
	isOrWrite(t, "docs/run/logs.md", "| Message |", table.String())
}

// isOrWrite proves that a page ends with a table, from its heading on; with -rewrite it writes that.
func isOrWrite(t *testing.T, page, heading, table string) {
	t.Helper()
	path := filepath.Join("../../..", page)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(text), heading)
	if !ok {
		t.Fatalf("%s has no table that begins with %q", page, heading)
	}
	want := head + table
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s, which go test ./test/checks/docs -run %s -rewrite writes (-want +got):\n%s", page, t.Name(), diff)
	}
}

// noteLog notes a call that ends a chain of zerolog with a constant message.
func noteLog(lines map[string]*logLine, call *ast.CallExpr) {
	end, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || end.Sel.Name != "Msg" || len(call.Args) != 1 {
		return
	}
	message, ok := literal(call.Args[0])
	if !ok {
		return
	}
	l := lines[message]
	if l == nil {
		l = &logLine{make(map[string]struct{}), make(map[string]struct{})}
		lines[message] = l
	}
	for x := end.X; ; {
		step, ok := x.(*ast.CallExpr)
		if !ok {
			return
		}
		method, ok := step.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		switch name := method.Sel.Name; name {
		case "Debug", "Info", "Warn", "Error":
			l.levels[strings.ToLower(name)] = struct{}{}
		case "WithLevel":
			l.levels["varies"] = struct{}{}
		case "Err":
			l.fields["error"] = struct{}{}
		case "EmbedObject":
			l.fields["…"] = struct{}{}
		default:
			if len(step.Args) > 0 {
				if field, ok := literal(step.Args[0]); ok {
					l.fields[field] = struct{}{}
				}
			}
		}
		x = method.X
	}
}

func literal(x ast.Expr) (string, bool) {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
