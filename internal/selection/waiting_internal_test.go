package selection

import (
	"errors"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/reservations"
)

// TestLongPromptOfAnotherBlockSize: the hashes of a prompt that waits say nothing about
// blocks of another size.
func TestLongPromptOfAnotherBlockSize(t *testing.T) {
	c := selection{choice: choice{request: new(SelectRequest), query: new(query)}}
	c.wait.kept = &kept{prompt: new(reservations.Pin), tokens: true, layout: hashing.Layout{BlockSize: 16}}
	if err := c.readPrompt(&catalog.Snapshot{BlockSize: 16}); err != nil {
		t.Errorf("same block size: %v", err)
	}
	if err := c.readPrompt(&catalog.Snapshot{BlockSize: 8}); !errors.Is(err, errPromptGone) {
		t.Errorf("another block size: %v, want %v", err, errPromptGone)
	}
}
