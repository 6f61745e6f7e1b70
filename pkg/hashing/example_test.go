package hashing_test

import (
	"fmt"

	"github.com/select-service/select-service/pkg/hashing"
)

// Ten tokens are two blocks of four; the incomplete tail has no hash. Two prompts
// with a common first block agree in its hash and differ in every sequence hash
// after it.
func Example() {
	layout := hashing.Layout{BlockSize: 4}
	a := layout.AppendLocal(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, hashing.Seed, nil)
	b := layout.AppendLocal(nil, []uint32{1, 2, 3, 4, 0, 0, 0, 0}, hashing.Seed, nil)
	fmt.Println(len(a), "blocks, first equal:", a[0] == b[0])

	x, y := hashing.AppendSequence(nil, a), hashing.AppendSequence(nil, b)
	fmt.Println("first equal:", x[0] == y[0], "second equal:", x[1] == y[1])
	// Output:
	// 2 blocks, first equal: true
	// first equal: true second equal: false
}
