package fleet

import (
	"slices"
	"testing"
)

// TestReadable: where the operator lists hosts, what replicas of a fleet say of themselves is
// read from these alone.
func TestReadable(t *testing.T) {
	urls := []string{"http://a:8092", "https://B:8092/x", "http://evil/", "http://a.evil", "http://a@evil", ":"}
	for _, tt := range []struct{ hosts, want []string }{
		{nil, urls}, {[]string{"a", "b"}, urls[:2]}, {[]string{"c"}, nil},
	} {
		m := &Member{options: Options{Hosts: tt.hosts}}
		if got := m.readable(slices.Clone(urls)); !slices.Equal(got, tt.want) {
			t.Errorf("on %v: %v, want %v", tt.hosts, got, tt.want)
		}
	}
}
