package prometheus

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rateInterval is what the dashboard's $__rate_interval is taken for: ten
// scrapes of the test.
const rateInterval = "10s"

// variables are what Grafana puts in place of the dashboard's variables while
// all of them stand on "All".
var variables = strings.NewReplacer(
	"$__rate_interval", rateInterval, "$job", ".*", "$instance", ".*", "$model", ".*",
)

// substitute returns a panel's expression as Grafana sends it.
func substitute(expr string) string { return variables.Replace(expr) }

var (
	// opaque are the parts of an expression that hold no operators and no names:
	// label matchers, strings and ranges.
	opaque     = regexp.MustCompile(`\{[^{}]*\}|"[^"]*"|\[[^\[\]]*\]`)
	comparison = regexp.MustCompile(`(==|!=|>=|<=|>|<)(\s*bool\b)?\s*`)
	unless     = regexp.MustCompile(`\bunless\b`)
	absent     = regexp.MustCompile(`\babsent\b`)
	either     = regexp.MustCompile(`\bor\b`)

	labelList  = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)`)
	identifier = regexp.MustCompile(`\b[a-zA-Z_:][a-zA-Z0-9_:]*\b\s*\(?`)
)

// outside changes the parts of an expression that are not opaque.
func outside(expr string, change func(string) string) string {
	var out strings.Builder
	end := 0
	for _, at := range opaque.FindAllStringIndex(expr, -1) {
		out.WriteString(change(expr[end:at[0]]))
		out.WriteString(expr[at[0]:at[1]])
		end = at[1]
	}
	out.WriteString(change(expr[end:]))
	return out.String()
}

// watched returns the expression of an alert so that it has a sample for each
// series that the alert looks at, whether it fires or not: a comparison answers
// 0 or 1 instead of leaving samples out, "unless" asks for what would silence the
// alert, and absent() counts what must not be absent. Everything else stays, so
// that a metric, a label or a join that does not exist leaves nothing.
func watched(expr string) string {
	return outside(expr, func(s string) string {
		s = comparison.ReplaceAllString(s, "$1 bool ")
		s = unless.ReplaceAllString(s, "and")
		return absent.ReplaceAllString(s, "count")
	})
}

// alternatives splits an expression at its "or": each operand has to have data
// of its own.
func alternatives(expr string) []string {
	const mark = "\x00"
	return strings.Split(outside(expr, func(s string) string { return either.ReplaceAllString(s, mark) }), mark)
}

// labelValues is the query of a variable: the series, and the label whose values
// it offers.
var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

// metrics returns the names of the metrics in an expression, each once.
func metrics(expr string) []string {
	expr = opaque.ReplaceAllString(expr, " ")
	expr = labelList.ReplaceAllString(expr, " ")
	var names []string
	for _, word := range identifier.FindAllString(expr, -1) {
		switch {
		case strings.HasSuffix(word, "("): // a function or an aggregation
		case slices.Contains([]string{"and", "or", "unless", "bool", "offset"}, strings.TrimSpace(word)):
		default:
			names = append(names, strings.TrimSpace(word))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestWatched(t *testing.T) {
	for expr, want := range map[string]string{
		`up{job!="a>b"} == 0`:       `up{job!="a>b"} == bool 0`,
		`a / on (x) b >= 1 and c<2`: `a / on (x) b >= bool 1 and c< bool 2`,
		`a == bool on (job) b > 1`:  `a == bool on (job) b > bool 1`,
		`absent(up{job="s"})`:       `count(up{job="s"})`,
		`a > 0 unless on (x) (b)`:   `a > bool 0 and on (x) (b)`,
	} {
		if got := watched(expr); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", expr, got, want)
		}
	}
}

func TestAlternatives(t *testing.T) {
	got := alternatives(`a{b="x or y"} > 0 or for_c`)
	if len(got) != 2 || got[0] != `a{b="x or y"} > 0 ` || got[1] != " for_c" {
		t.Errorf("%q", got)
	}
}

func TestMetrics(t *testing.T) {
	for expr, want := range map[string]string{
		`sum by (le, b) (rate(x_total{a="y"}[5m])) / clamp_min(sum(z:r), 1e-9) * 100`:  "x_total z:r",
		`a and on (job) b unless ignoring(c) d == bool 1 or vector(0) offset`:          "a b d",
		`histogram_quantile(0.99, sum without (q) (rate(h_bucket[$__rate_interval])))`: "h_bucket",
	} {
		if got := strings.Join(metrics(expr), " "); got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
}
