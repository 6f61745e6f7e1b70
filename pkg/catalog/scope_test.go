package catalog_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestNames: a model or tenant of up to 1,024 bytes is taken, a longer one is
// refused and changes nothing, by both contracts.
func TestNames(t *testing.T) {
	longest := strings.Repeat("é", catalog.MaxName/2)
	tests := map[string]struct {
		scope catalog.Scope
		want  string
	}{
		"longest": {catalog.Scope{Model: longest, Tenant: longest}, ""},
		"model":   {catalog.Scope{Model: longest + "x"}, "model_name has 1025 bytes, the maximum is 1024"},
		"tenant":  {catalog.Scope{Tenant: longest + longest}, "tenant_id has 2048 bytes, the maximum is 1024"},
		"both":    {catalog.Scope{Model: longest + "x", Tenant: longest + "x"}, "model_name has 1025 bytes, the maximum is 1024"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, world := newWorld(t, eventsOff)
			check := func(what string, err error) {
				t.Helper()
				var invalid *catalog.LimitError
				switch {
				case tc.want == "" && err != nil, tc.want != "" && (!errors.As(err, &invalid) || err.Error() != tc.want):
					t.Errorf("%s: %v, want %q", what, err, tc.want)
				case err != nil && (len(c.List(nil, nil)) > 1 || len(world.took()) > 0):
					t.Errorf("a refused %s changed something", what)
				}
			}
			put(t, c, record(3))
			world.took()
			for id, what := range map[uint64]string{1: "Put", 3: "Put that moves a worker"} {
				r := record(id)
				r.Scope = tc.scope
				_, err := c.Put(r)
				check(what, err)
			}
			_, err := c.PutTracked(tracked(2, tc.scope, *record(1).BlockSize, 0, 1))
			check("PutTracked", err)
		})
	}
}

// TestShortName: names that a worker can have stay whole, longer ones are cut at
// the end of a character, whatever they consist of.
func TestShortName(t *testing.T) {
	long := strings.Repeat("x", catalog.MaxName)
	for name, want := range map[string]string{
		"":                             "",
		long:                           long,
		long + "x":                     long[:256] + "…",
		strings.Repeat("é", 600):       strings.Repeat("é", 128) + "…",
		"x" + strings.Repeat("é", 600): "x" + strings.Repeat("é", 127) + "…",
		strings.Repeat("€", 600):       strings.Repeat("€", 85) + "…",
		strings.Repeat("\x80", 2000):   strings.Repeat("\x80", 252) + "…", // no text at all
	} {
		if got := catalog.ShortName(name); got != want {
			t.Errorf("%.20q… of %d bytes became %.300q of %d", name, len(name), got, len(got))
		}
	}
	if got, want := (catalog.Scope{Model: long + "x", Tenant: "t"}).Short(), (catalog.Scope{Model: long[:256] + "…", Tenant: "t"}); got != want {
		t.Errorf("scope is %v", got)
	}
}
