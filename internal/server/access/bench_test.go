package access

import (
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
)

// BenchmarkAdmit finds the caller of a request among the tokens of a file.
func BenchmarkAdmit(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprint("tokens=", n), func(b *testing.B) {
			var file strings.Builder
			file.WriteString("tokens:\n")
			for i := range n {
				file.WriteString(entry("n", fmt.Sprint(i), "roles: [call]"))
			}
			d, err := decode("f", []byte(file.String()))
			if err != nil {
				b.Fatal(err)
			}
			g := new(Guard)
			g.callers.Store(d)
			r := bearer("0")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := g.Admit(r, Call, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCheck is what each request of a program costs because browsers may send some: a POST by a name, to a
// listener that may be addressed by any.
func BenchmarkCheck(b *testing.B) {
	h := NewHosts(nil, &net.TCPAddr{IP: net.IPv4zero, Port: 8092}, nil, "machine")
	r := httptest.NewRequest("POST", "http://select-service.serving.svc:8092/select", nil)
	for _, name := range []string{"Content-Type", "Content-Length", "User-Agent", "Accept-Encoding"} {
		r.Header.Set(name, "x")
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := errors.Join(CheckOrigin(r), h.Check(r)); err != nil {
			b.Fatal(err)
		}
	}
}
