package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// pages returns the Markdown pages that a reader of the repository starts from.
func pages(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		"*.md", "docs/*.md", "docs/*/*.md", "docs/start/tutorials/*.md", "deploy/*.md", "clients/python/*.md", "test/*/*/*.md",
	} {
		names, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	return found
}

// TestLength proves that the README can be read in five minutes. Other pages are as
// long as their readers' tasks need.
func TestLength(t *testing.T) {
	const limit = 9_000 // characters
	if n := utf8.RuneCountInString(read(t, rootOf(t), "README.md")); n > limit {
		t.Errorf("README.md has %d characters, want at most %d", n, limit)
	}
}

// TestIndex proves that docs/README.md leads to every page below docs. Decisions (docs/adr) are listed by their folder.
func TestIndex(t *testing.T) {
	root := rootOf(t)
	linked := make(map[string]bool)
	for _, m := range link.FindAllStringSubmatch(read(t, root, "docs/README.md"), -1) {
		file, _, _ := strings.Cut(m[1], "#")
		linked[path.Join("docs", file)] = true
	}
	for _, page := range pages(t, root) {
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" && !strings.HasPrefix(page, "docs/adr/") && !linked[page] {
			t.Errorf("docs/README.md does not lead to %s", page)
		}
	}
}

// TestVersion proves that what names a version of the next release names that of the newest section of
// the changelog, which make test-packages makes.
func TestVersion(t *testing.T) {
	root := rootOf(t)
	section := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\]`).FindStringSubmatch(read(t, root, "CHANGELOG.md"))
	if section == nil {
		t.Fatal("CHANGELOG.md has no section of a version")
	}
	for page, pattern := range map[string]string{
		"deploy/chart/Chart.yaml":               `(?m)^version: "(.*)"$`,
		"deploy/kubernetes/select-service.yaml": `image: ".*:(.*)"`,
		"clients/python/pyproject.toml":         `(?m)^version = "(.*)"$`,
	} {
		if got := regexp.MustCompile(pattern).FindStringSubmatch(read(t, root, page)); got == nil || got[1] != section[1] {
			t.Errorf("%s has %q, the changelog %s", page, got, section[1])
		}
	}
}

var (
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	repoPath = regexp.MustCompile(`^(\.ci|api|clients|cmd|configs|demo|deploy|docs|examples|internal|pkg|scripts|test|testdata)/[\w./-]+$`)
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)[A-Z]\w*$`)
	bench    = regexp.MustCompile(`BENCH='?([\w|]+)`)
	target   = regexp.MustCompile(`^make ([a-z][a-z0-9-]*)`)
	lock     = regexp.MustCompile("`([a-z]+)\\.(\\w+)\\.(\\w+)`")
	metric   = regexp.MustCompile(`\bselect_service_[a-z_]*[a-z]`)
	function = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w+)\(`)
)

// TestLinks proves that every link inside the repository leads to a file, and to
// a heading in it if it names one.
func TestLinks(t *testing.T) {
	root := rootOf(t)
	for _, page := range pages(t, root) {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, root, page), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, hasAnchor := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = path.Join(path.Dir(page), file)
			}
			switch _, err := os.Stat(filepath.Join(root, to)); {
			case err != nil:
				t.Errorf("%s links to %s: %v", page, m[1], err)
			case hasAnchor && !slices.Contains(anchors(read(t, root, to)), anchor):
				t.Errorf("%s links to %s, which has no such heading", page, m[1])
			}
		}
	}
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(page string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > utf8.RuneSelf:
				return r
			}
			return -1
		}, strings.ToLower(m[1])))
	}
	return names
}

// TestNames proves that the files, tests and make targets that a page names
// exist. The changelog also names what is gone.
func TestNames(t *testing.T) {
	root := rootOf(t)
	functions := testFunctions(t, root)
	makefile := read(t, root, "Makefile")
	for _, page := range pages(t, root) {
		if page == "CHANGELOG.md" {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, root, page), ""), -1) {
			name := m[1]
			switch {
			case repoPath.MatchString(name):
				name = strings.TrimSuffix(strings.TrimSuffix(name, "/..."), "NNNN-title.md")
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Errorf("%s names %s: %v", page, name, err)
				}
			case testName.MatchString(name):
				if !functions[name] {
					t.Errorf("%s names %s, which is no test", page, name)
				}
			case target.MatchString(name):
				if goal := target.FindStringSubmatch(name)[1]; !strings.Contains(makefile, "\n"+goal+":") {
					t.Errorf("%s names make %s, which is no target", page, goal)
				}
			}
		}
	}
}

// TestPackages proves that the architecture names every package of the service.
func TestPackages(t *testing.T) {
	root := rootOf(t)
	table := section(t, read(t, root, "docs/ARCHITECTURE.md"), "Packages")
	for _, pattern := range []string{"cmd/*", "internal/*", "pkg/*"} {
		names, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if !strings.Contains(table, "`"+name+"`") && !strings.Contains(table, "`"+name+"/") {
				t.Errorf("docs/ARCHITECTURE.md has no row for %s", name)
			}
		}
	}
}

// TestLocks proves that each lock in the table of the architecture is a field of
// the type that the table says.
func TestLocks(t *testing.T) {
	root := rootOf(t)
	locks := lock.FindAllStringSubmatch(section(t, read(t, root, "docs/ARCHITECTURE.md"), "Locks"), -1)
	if len(locks) < 10 {
		t.Fatalf("the table has %d locks", len(locks))
	}
	for _, m := range locks {
		declared := regexp.MustCompile(`(?ms)^type ` + m[2] + ` struct \{\n.*?^\}$`)
		field := regexp.MustCompile(`(?m)^\t` + m[3] + `\s+(struct \{\n\t\t)?sync\.(RW)?Mutex$`)
		var files []string
		for _, wing := range []string{"pkg", "internal", "internal/*"} {
			found, err := filepath.Glob(filepath.Join(root, wing, m[1], "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, found...)
		}
		if !slices.ContainsFunc(files, func(name string) bool {
			b, err := os.ReadFile(name)
			return err == nil && field.Match(declared.Find(b))
		}) {
			t.Errorf("there is no lock %s", m[0])
		}
	}
}

// TestBenchmarkNames proves that the benchmarks that a page runs exist.
func TestBenchmarkNames(t *testing.T) {
	root := rootOf(t)
	functions := testFunctions(t, root)
	for _, page := range pages(t, root) {
		for _, m := range bench.FindAllStringSubmatch(read(t, root, page), -1) {
			for name := range strings.SplitSeq(m[1], "|") {
				if !functions["Benchmark"+name] {
					t.Errorf("%s runs Benchmark%s, which does not exist", page, name)
				}
			}
		}
	}
}

// TestMetricNames proves that the metrics that a page names exist.
func TestMetricNames(t *testing.T) {
	root := rootOf(t)
	families := read(t, root, "internal/telemetry/testdata/families.golden")
	for _, page := range pages(t, root) {
		for _, name := range metric.FindAllString(read(t, root, page), -1) {
			if name != "select_service_client" && !strings.Contains(families, name) { // the former is the Python package
				t.Errorf("%s names %s, which is no metric", page, name)
			}
		}
	}
}

// testFunctions are the names of all test functions of the repository.
func testFunctions(t *testing.T, root string) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range function.FindAllStringSubmatch(read(t, root, name), -1) {
				names[m[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
