package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/select-service/select-service/"

// leaves are packages of types and small tools that know nothing of the rest of
// the service. Every package may use them but those that strangers import, for
// which mayImport lists them one by one.
var leaves = []string{"internal/codec/bodyscan", "pkg/memory", "internal/selection/contract", "internal/container/hashset", "internal/container/keyhash", "internal/container/offheap", "internal/container/slotset", "internal/codec/msgpack", "internal/codec/yamlread", "internal/codec/redact", "internal/telemetry/metrics", "internal/telemetry/tracing"}

// mayImport is the table of docs/ARCHITECTURE.md: for each package the packages
// of this module that its code may import, beside the leaves. "x/..." is x and
// everything below. Tests may import more.
var mayImport = map[string][]string{
	"cmd/select-service": {"internal/...", "pkg/..."},
	"cmd/selectctl":      {"internal/server/access", "internal/codec/redact"}, // tokens and roles, what is not shown, beside what programs may import

	"api":                   {},
	"api/internal/generate": {"pkg/catalog"},

	"internal/arch":                     {},
	"internal/codec":                    {},
	"internal/codec/bodyscan":           {"internal/codec/msgpack"},
	"internal/codec/msgpack":            {},
	"internal/codec/redact":             {},
	"internal/codec/yamlread":           {},
	"internal/conductor":                {"internal/selection/diagnose", "pkg/catalog", "pkg/hashing", "pkg/indexer", "pkg/kvevents"},
	"internal/config":                   {"internal/workers/enginelist", "internal/workers/kubernetes/mapping", "internal/selection/admission", "internal/selection/identity", "internal/selection/overload", "internal/selection/pending", "internal/selection/policies", "internal/fleet/bus", "internal/engines/routes", "pkg/..."},
	"internal/selection/diagnose":       {"pkg/catalog", "pkg/hashing", "pkg/indexer", "pkg/kvevents"},
	"internal/container":                {},
	"internal/container/hashset":        {},
	"internal/container/keyhash":        {},
	"internal/container/offheap":        {},
	"internal/container/slotset":        {},
	"internal/workers":                  {"pkg/catalog", "pkg/reservations"},
	"internal/workers/enginelist":       {"internal/workers", "internal/workers/workerid", "pkg/catalog"},
	"internal/fleet":                    {"internal/fleet/bus", "internal/selection/overload", "internal/selection/settings", "internal/transport/atomicfile", "internal/transport/fetch", "internal/transport/zmqsock", "internal/workers", "pkg/catalog"},
	"internal/workers/workerid":         {},
	"internal/workers/workersfile":      {"internal/workers", "internal/workers/enginelist", "internal/transport/filewatch", "pkg/catalog"},
	"internal/engines/describe":         {"internal/engines", "pkg/catalog"},
	"internal/engines":                  {"pkg/catalog"},
	"internal/engines/load":             {"internal/engines", "pkg/catalog", "pkg/kvevents", "pkg/memory"},
	"internal/engines/reports":          {"internal/engines/load", "pkg/catalog", "pkg/reservations"},
	"internal/node":                     {"internal/...", "pkg/..."},
	"internal/node/statefile":           {"internal/selection/pauses", "internal/selection/policies", "internal/selection/scopes", "internal/telemetry", "internal/transport/atomicfile", "pkg/..."},
	"internal/selection":                {"internal/engines/reports", "internal/selection/admission", "internal/selection/affinity", "internal/selection/approximate", "internal/selection/counts", "internal/selection/fairness", "internal/selection/identity", "internal/selection/overload", "internal/selection/pauses", "internal/selection/pending", "internal/selection/policies", "internal/selection/rankstate", "internal/selection/scopes", "internal/selection/settings", "pkg/..."},
	"internal/selection/admission":      {"internal/selection/fairness", "pkg/catalog"},
	"internal/selection/fairness":       {"pkg/catalog"},
	"internal/selection/affinity":       {"internal/selection/pauses", "pkg/catalog"},
	"internal/selection/approximate":    {"pkg/memory", "pkg/catalog", "pkg/hashing", "pkg/indexer", "pkg/recovery"},
	"internal/selection/contract":       {"internal/selection/overload", "pkg/catalog", "pkg/reservations"},
	"internal/selection/counts":         {"internal/selection/fairness", "internal/selection/identity", "internal/selection/overload", "pkg/catalog", "pkg/selector"},
	"internal/selection/identity":       {},
	"internal/selection/overload":       {},
	"internal/selection/pauses":         {"pkg/catalog"},
	"internal/selection/pending":        {"pkg/catalog", "pkg/reservations"},
	"internal/selection/policies":       {"pkg/catalog", "pkg/selector/..."},
	"internal/selection/rankstate":      {"internal/engines/reports", "internal/selection/overload", "pkg/catalog", "pkg/kvevents", "pkg/reservations"},
	"internal/selection/scopes":         {"internal/selection/admission", "internal/selection/approximate", "internal/selection/policies", "internal/selection/waitqueue", "pkg/..."},
	"internal/selection/settings":       {"internal/selection/overload"},
	"internal/selection/waitqueue":      {"internal/selection/admission", "internal/selection/fairness"},
	"internal/server":                   {},
	"internal/server/access":            {"internal/transport/clientnet", "internal/transport/filewatch", "pkg/catalog"},
	"internal/server/connections":       {"pkg/memory", "internal/transport/clientnet"},
	"internal/server/doctor":            {"internal/selection/diagnose", "internal/selection/rankstate", "internal/node", "internal/server/replicastatus", "pkg/..."},
	"internal/server/replicastatus":     {"internal/node", "internal/selection", "pkg/..."},
	"internal/server/ranks":             {"internal/engines/load", "internal/node", "internal/selection/rankstate", "internal/selection/scopes", "pkg/..."},
	"internal/server/gateway":           {"internal/server/access", "pkg/memory", "internal/server/gateway/counts", "internal/server/gateway/openai", "internal/engines/routes", "internal/server/gateway/tokenizer", "internal/selection", "internal/selection/identity", "pkg/catalog", "pkg/selector"},
	"internal/server/gateway/counts":    {},
	"internal/server/gateway/extproc":   {"internal/server/access", "internal/server/gateway", "internal/server/gateway/counts"},
	"internal/server/gateway/openai":    {"internal/selection/identity"},
	"internal/server/gateway/proxy":     {"internal/server/access", "internal/server/gateway", "internal/server/gateway/counts", "internal/server/gateway/openai", "internal/transport/http1", "pkg/catalog"},
	"internal/engines/routes":           {},
	"internal/server/gateway/tokenizer": {"internal/engines", "internal/server/gateway/openai", "internal/transport/http1", "pkg/catalog"},
	"internal/server/httpapi":           {"api", "internal/container/offheap", "internal/engines/load", "internal/engines/reports", "internal/server/access", "internal/server/doctor", "internal/server/ranks", "internal/server/gateway/tokenizer", "internal/server/replicastatus", "internal/server/ui", "internal/conductor", "internal/selection/diagnose", "internal/selection/fairness", "internal/selection/identity", "internal/selection/overload", "internal/selection/rankstate", "internal/selection", "internal/node", "internal/fleet", "internal/workers", "pkg/..."},
	"internal/server/ui":                {},
	"internal/simulation":               {},
	"internal/simulation/engine":        {},
	"internal/simulation/workload":      {},
	"internal/telemetry":                {"internal/transport/certs", "internal/conductor", "internal/selection/counts", "internal/selection/overload", "internal/selection/policies", "internal/selection/rankstate", "internal/selection/scopes", "internal/workers/workersfile", "pkg/..."},
	"internal/telemetry/logwriter":      {},
	"internal/telemetry/metrics":        {},
	"internal/telemetry/tracing":        {"internal/telemetry/metrics"},
	"internal/transport":                {},
	"internal/transport/atomicfile":     {},
	"internal/transport/certs":          {"internal/transport/filewatch"},
	"internal/transport/clientnet":      {},
	"internal/transport/fetch":          {"internal/transport/certs", "internal/transport/filewatch", "pkg/recovery"},
	"internal/transport/filewatch":      {},
	"internal/transport/http1":          {},
	"internal/fleet/bus":                {"pkg/memory", "pkg/replicasync"},
	"internal/transport/zmqsock":        {"internal/transport/clientnet", "internal/transport/zmtp", "pkg/catalog"},
	"internal/transport/zmtp":           {},
	"pkg/memory":                        {},
	"test/helpers/agents":               {},
	"test/helpers/kvpub":                {"internal/transport/zmqsock"},
	"test/helpers/servicetest":          {"internal/...", "pkg/..."},
	"test/helpers/zmqtest":              {"pkg/kvevents"},

	"internal/workers/kubernetes":         {"internal/workers", "internal/workers/kubernetes/mapping", "internal/telemetry/metrics", "pkg/catalog", "pkg/memory"},
	"internal/workers/kubernetes/mapping": {"internal/workers/workerid", "pkg/catalog"},

	"test/helpers/kubetest": {},

	"scripts/dist":     {},
	"scripts/newcomer": {},
	"scripts/sbom":     {},

	"pkg/catalog":              {},
	"pkg/client":               {"internal/codec/bodyscan", "internal/codec/msgpack"},
	"pkg/hashing":              {},
	"pkg/indexer":              {"pkg/memory", "internal/container/keyhash", "internal/container/offheap", "internal/container/slotset", "pkg/catalog", "pkg/hashing", "pkg/indexer/hybrid"},
	"pkg/indexer/hybrid":       {},
	"pkg/kvevents":             {"pkg/memory", "internal/container/hashset", "internal/codec/msgpack", "pkg/catalog", "pkg/hashing", "pkg/indexer", "pkg/indexer/hybrid"},
	"pkg/kvevents/libzmq":      {"pkg/memory", "pkg/catalog", "pkg/kvevents"},
	"pkg/recovery":             {"pkg/memory", "internal/container/hashset", "internal/codec/msgpack", "pkg/catalog", "pkg/hashing", "pkg/indexer"},
	"pkg/replicasync":          {"pkg/memory", "internal/codec/msgpack", "pkg/catalog", "pkg/reservations/..."},
	"pkg/reservations":         {"pkg/memory", "internal/container/hashset", "internal/container/keyhash", "internal/container/offheap", "internal/container/slotset", "pkg/catalog", "pkg/hashing", "pkg/reservations/history"},
	"pkg/reservations/history": {"pkg/memory", "pkg/catalog"},
	"pkg/selector":             {"pkg/catalog", "pkg/selector/ttft"},
	"pkg/selector/ttft":        {"pkg/catalog"},
}

// programs is what the tools around the service may import: its public packages
// and its sockets, never its inside. They meet it on the wire, so that they can
// drive any other server of the same contract. test/checks/e2e is the harness that starts it.
var programs = []string{"api", "internal/simulation/...", "internal/transport/zmqsock", "pkg/...", "test/checks/e2e", "test/helpers/kvpub", "test/helpers/length", "test/helpers/tracetest", "test/helpers/zmqtest"}

// client is a library for programs that call the service. It is no part of the
// core and nothing of the core may use it.
const client = "pkg/client"

// notInCore is what no package under pkg/ but the client may import: the core has
// no log, no HTTP, no sockets.
var notInCore = []string{
	"log", "log/slog", "net/http", "github.com/gin-gonic/gin",
	"github.com/prometheus/client_golang/prometheus", "github.com/rs/zerolog",
}

// clockReaders are the functions of package time that read or wait for the
// clock of the machine.
var clockReaders = []string{"Now", "Since", "Until", "Sleep"}

// withoutClock are the core packages that are told the time.
var withoutClock = []string{
	"internal/selection/admission", "internal/selection/affinity", "internal/selection/approximate", "internal/conductor", "internal/selection/diagnose", "internal/selection/fairness", "internal/selection/overload", "internal/selection/pauses", "internal/selection/pending",
	"pkg/catalog", "pkg/hashing", "pkg/indexer", "pkg/indexer/hybrid", "pkg/recovery", "pkg/reservations", "pkg/reservations/history", "pkg/selector", "pkg/selector/ttft",
}

var emptyNames = []string{"util", "utils", "common", "types", "core", "manager", "helpers", "misc"}

// source is one parsed Go file.
type source struct {
	path string // from the root of the module, with slashes
	dir  string
	test bool
	ast  *ast.File
	pos  *token.FileSet
}

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.ast.Imports {
		p, _ := strconv.Unquote(spec.Path.Value) // the parser has checked the syntax
		paths = append(paths, p)
	}
	return paths
}

// isProgram tells the simulated engines, their player and the black-box tests
// from the service.
func (s source) isProgram() bool {
	return s.dir != "cmd/select-service" && s.dir != "test/helpers/servicetest" && matches([]string{"cmd/...", "demo/...", "examples/...", "test/..."}, s.dir)
}

func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// parsed reads the module once for all tests.
var parsed = sync.OnceValues(func() ([]source, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	var found []source
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && (base == "testdata" || strings.HasPrefix(base, ".") || isModule(filepath.Join(root, name))) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		pos := token.NewFileSet()
		file, err := parser.ParseFile(pos, name, content, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		found = append(found, source{
			path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
			ast: file, pos: pos,
		})
		return nil
	})
	return found, err
})

// isModule reports whether a folder is a module of its own, with its own rules.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		allowed, listed := mayImport[s.dir]
		switch {
		case s.isProgram():
			allowed, listed = slices.Concat(allowed, programs, []string{s.dir + "/..."}), true
			if !strings.HasPrefix(s.dir, "cmd/") { // the product depends on no demo
				allowed = append(allowed, "demo/sim/...")
			}
		case s.dir == "test/helpers/servicetest", strings.HasPrefix(s.dir, "internal/"), strings.HasPrefix(s.dir, "cmd/"):
			allowed = slices.Concat(allowed, leaves)
		}
		if !listed {
			t.Errorf("%s: package %s is not in the table of internal/arch: give it one duty and its imports", s.path, s.dir)
			continue
		}
		for _, imported := range s.imports() {
			if ours, ok := strings.CutPrefix(imported, module); ok && (!matches(allowed, ours) || ours == client && !s.isProgram()) {
				t.Errorf("%s imports %s; %s may import %v", s.path, ours, s.dir, allowed)
			}
			if strings.HasPrefix(s.dir, "pkg/") && s.dir != client && slices.Contains(notInCore, imported) {
				t.Errorf("%s imports %s; packages under pkg/ have no log, HTTP or sockets", s.path, imported)
			}
		}
	}
}

// wings are the folders of internal/ in an order in which each imports only those before it.
var wings = []string{"simulation", "container", "codec", "telemetry/metrics", "telemetry/tracing", "transport", "engines", "selection", "conductor", "workers", "fleet", "config", "telemetry", "node", "server"}

// TestWings proves that no wing of internal/ reaches back: what decides about a request knows
// nothing of how others reach it, of where workers come from, or of what is shown of it.
func TestWings(t *testing.T) {
	of := func(dir string) int {
		return slices.IndexFunc(wings, func(w string) bool { return matches([]string{"internal/" + w + "/..."}, dir) })
	}
	for _, s := range sources(t) {
		if s.test || !strings.HasPrefix(s.dir, "internal/") || s.dir == "internal/arch" {
			continue
		}
		own := of(s.dir)
		if own < 0 {
			t.Errorf("%s: no wing of internal/ has %s", s.path, s.dir)
			continue
		}
		for _, imported := range s.imports() {
			ours, _ := strings.CutPrefix(imported, module)
			if strings.HasPrefix(ours, "internal/") && of(ours) > own {
				t.Errorf("%s imports %s, which is a wing above it", s.path, ours)
			}
		}
	}
}

// TestSelectionAlone proves that a selection, with all that it imports, knows no edge: no
// certificates, sockets, files of workers, routes, or the Conductor.
func TestSelectionAlone(t *testing.T) {
	imports := make(map[string][]string)
	for _, s := range sources(t) {
		for _, imported := range s.imports() {
			if ours, ok := strings.CutPrefix(imported, module); ok && !s.test {
				imports[s.dir] = append(imports[s.dir], ours)
			}
		}
	}
	seen := make(map[string]bool)
	var visit func(dir, by string)
	visit = func(dir, by string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		if matches([]string{"internal/transport/...", "internal/server/...", "internal/workers/...", "internal/fleet/...", "internal/node/...", "internal/conductor/...", "internal/config/..."}, dir) {
			t.Errorf("a selection depends on %s, which %s imports", dir, by)
		}
		for _, imported := range imports[dir] {
			visit(imported, dir)
		}
	}
	visit("internal/selection", "")
}

func matches(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "/..."); ok {
			return dir == prefix || strings.HasPrefix(dir, prefix+"/")
		}
		return dir == p
	})
}

// withLibzmq is the one package that is no test's and has sockets of libzmq.
const withLibzmq = "pkg/kvevents/libzmq"

// TestSockets proves that libzmq's sockets are behind few packages, and that the program is
// built with them only if it is asked to (the build tag libzmq): by itself it needs no C.
func TestSockets(t *testing.T) {
	homes := []string{"test/helpers/kvpub", "test/helpers/zmqtest", withLibzmq}
	tests := append(homes, "internal/transport/zmqsock", "internal/transport/zmtp")
	for _, s := range sources(t) {
		if !s.test && slices.Contains(s.imports(), module+withLibzmq) && (s.dir != "cmd/select-service" || buildTag(s) != "//go:build libzmq") {
			t.Errorf("%s imports %s; only cmd/select-service may, under the build tag libzmq", s.path, withLibzmq)
		}
		home := homes
		if s.test {
			home = tests
		}
		if !matches(home, s.dir) && slices.Contains(s.imports(), "github.com/pebbe/zmq4") {
			t.Errorf("%s imports zmq4; only %v may", s.path, home)
		}
	}
}

// buildTag returns the constraint of a file, "" for none.
func buildTag(s source) string {
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:build ") {
				return c.Text
			}
		}
	}
	return ""
}

func TestNames(t *testing.T) {
	for _, s := range sources(t) {
		if name := s.ast.Name.Name; slices.Contains(emptyNames, strings.TrimSuffix(name, "_test")) {
			t.Errorf("%s: package name %s says nothing", s.path, name)
		}
	}
}

// TestClock proves that the core is told the time, and that no unit test waits
// for it to pass: sleeping is for the fake clock of testing/synctest, or of a helper
// of the same package that runs a test with it.
func TestClock(t *testing.T) {
	all := sources(t)
	fake := make(map[string][]string) // the helpers of each folder
	for _, s := range all {
		if s.test && slices.Contains(s.imports(), "testing/synctest") {
			for _, d := range s.ast.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && calls(f, "Test") && !strings.HasPrefix(f.Name.Name, "Test") {
					fake[s.dir] = append(fake[s.dir], f.Name.Name)
				}
			}
		}
	}
	for _, s := range all {
		inCore := slices.Contains(withoutClock, s.dir)
		for _, call := range timeCalls(s) {
			switch at := s.pos.Position(call.Pos()); {
			case !s.test && inCore:
				t.Errorf("%s: time.%s in %s, which has no clock of its own", at, call.Sel.Name, s.dir)
			case s.test && call.Sel.Name == "Sleep" && !s.isProgram() && !slices.Contains(s.imports(), "testing/synctest") && !calls(s.ast, fake[s.dir]...):
				t.Errorf("%s: time.Sleep in a test without a fake clock", at)
			}
		}
	}
}

// calls reports whether a function with one of these names is called below a node, as NAME or PACKAGE.NAME.
func calls(below ast.Node, names ...string) (found bool) {
	ast.Inspect(below, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			switch f := call.Fun.(type) {
			case *ast.Ident:
				found = found || slices.Contains(names, f.Name)
			case *ast.SelectorExpr:
				found = found || slices.Contains(names, f.Sel.Name)
			}
		}
		return !found
	})
	return found
}

func timeCalls(s source) []*ast.SelectorExpr {
	var calls []*ast.SelectorExpr
	ast.Inspect(s.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains(clockReaders, sel.Sel.Name) {
			calls = append(calls, sel)
		}
		return true
	})
	return calls
}

// TestTableIsCurrent proves that the table names no package that is gone.
func TestTableIsCurrent(t *testing.T) {
	present := make(map[string]bool)
	for _, s := range sources(t) {
		present[s.dir] = true
	}
	for dir := range mayImport {
		if !present[dir] {
			t.Errorf("the table of internal/arch names %s, which does not exist", dir)
		}
	}
}
