package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestMetricsPage proves that docs/reference/metrics.md has every metric of the service, with its labels, its type
// and the text of its HELP line.
func TestMetricsPage(t *testing.T) {
	const (
		families = "../../../internal/telemetry/testdata/families.golden"
		heading  = "| Metric | Type | Meaning |"
	)
	golden, err := os.ReadFile(families)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString(heading + "\n|---|---|---|\n")
	family := regexp.MustCompile(`(?m)^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)\n\S+?\{(.*)\}$`)
	found := family.FindAllStringSubmatch(string(golden), -1)
	if all := strings.Count(string(golden), "# HELP "); len(found) != all {
		t.Fatalf("%d of %d families are read", len(found), all)
	}
	for _, m := range found {
		labels := ""
		if m[4] != "" {
			labels = "{" + strings.ReplaceAll(m[4], ",", ", ") + "}"
		}
		fmt.Fprintf(&table, "| `%s`%s | %s | %s |\n", m[1], labels, m[3], strings.ReplaceAll(m[2], "|", `\|`))
	}
	isOrWrite(t, "docs/reference/metrics.md", heading, table.String())
}
