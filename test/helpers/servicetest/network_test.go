package servicetest

import (
	"slices"
	"testing"
)

// TestPromptsAreApart: prompts with different ids share no block.
func TestPromptsAreApart(t *testing.T) {
	a, b := Sequence(Prompt(1, 16), 4), Sequence(Prompt(2, 16), 4)
	for _, h := range a {
		if slices.Contains(b, h) {
			t.Fatalf("block %d is in both prompts", h)
		}
	}
}
