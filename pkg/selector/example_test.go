package selector_test

import (
	"fmt"

	"github.com/select-service/select-service/pkg/selector"
)

// Worker 0 has three of the four blocks cached but two others active: still
// the cheaper one.
func ExamplePick() {
	prompt := selector.Prompt{Tokens: 16, Blocks: 4, BlockSize: 4}
	weights := selector.DefaultWeights()
	costs := weights.Costs(prompt, []selector.Candidate{
		{Device: 3, Active: 2, Known: true},
		{Known: true},
	}, nil)
	fmt.Println(costs, selector.Pick(costs, weights.Temperature, selector.Global()))
	// Output: [7 8] 0
}
