package access

import (
	"fmt"
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
