package hybrid_test

import (
	"fmt"

	"github.com/select-service/select-service/pkg/indexer/hybrid"
)

// has is a cache whose window group has lost its first blocks of 16 tokens.
type has struct{ windowFrom uint64 }

func (h has) Has(group int, end uint64) bool { return group == 0 || end > h.windowFrom }

// A model has full attention and a sliding window. A length needs all blocks of the former and
// the last few of the latter.
func Example() {
	groups := []hybrid.Group{{Kind: hybrid.Full, BlockSize: 16}, {Kind: hybrid.Window, BlockSize: 16, Span: 33}}
	fmt.Println(hybrid.Boundary(96, 16, groups, has{windowFrom: 64}), "tokens: the window has the last two blocks")
	fmt.Println(hybrid.Boundary(96, 16, groups, has{windowFrom: 80}), "tokens: it has only the last one")
	// Output:
	// 96 tokens: the window has the last two blocks
	// 0 tokens: it has only the last one
}
