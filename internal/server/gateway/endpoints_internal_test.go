package gateway

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestResolve proves what Envoy is told of a worker's URL: an address as it is, a name by its
// IPv4 address if it has one, which is believed for a while and kept while nobody knows better.
func TestResolve(t *testing.T) {
	e := newEndpoints(zerolog.Nop())
	now, asked := time.Unix(0, 0), 0
	names := map[string][]netip.Addr{
		"both":  {netip.MustParseAddr("::1"), netip.MustParseAddr("::ffff:127.0.0.1")},
		"six":   {netip.MustParseAddr("2001:db8::1")},
		"empty": {},
	}
	e.now = func() time.Time { return now }
	e.lookUp = func(_ context.Context, _, host string) ([]netip.Addr, error) {
		asked++
		if all, ok := names[host]; ok {
			return all, nil
		}
		return nil, errors.New("no such host")
	}
	for _, tc := range []struct{ url, want string }{
		{"http://10.0.0.1:8000", "10.0.0.1:8000"},
		{"http://10.0.0.1", "10.0.0.1:80"},
		{"https://10.0.0.1/base", "10.0.0.1:443"},
		{"10.0.0.1:8000", "10.0.0.1:8000"},
		{"http://[2001:DB8:0::1]:8000", "[2001:db8::1]:8000"},
		{"http://[::ffff:10.0.0.1]:8000", "10.0.0.1:8000"},
		{"http://both:8000", "127.0.0.1:8000"},
		{"http://six:8000", "[2001:db8::1]:8000"},
		{"http://empty:8000", ""},
		{"http://unknown:8000", ""},
		{"10.0.0.1", ""},
		{"", ""},
	} {
		if got, err := e.resolve(t.Context(), tc.url); got.text != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%q: %+v, %v, want %q", tc.url, got, err, tc.want)
		}
	}
	names["six"] = []netip.Addr{netip.MustParseAddr("2001:db8::2")}
	asked = 0
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{nameFor - 1, "[2001:db8::1]:8000"}, {1, "[2001:db8::2]:8000"}} {
		now = now.Add(step.after)
		if got, err := e.resolve(t.Context(), "http://six:8000"); err != nil || got.text != step.want {
			t.Errorf("after %v: %+v, %v", now.Sub(time.Unix(0, 0)), got, err)
		}
	}
	delete(names, "six")
	now = now.Add(time.Hour)
	if got, err := e.resolve(t.Context(), "http://six:8000"); err != nil || got.text != "[2001:db8::2]:8000" || asked != 2 {
		t.Errorf("while the name is not known: %+v, %v, asked %d times", got, err, asked)
	}
}
