package kvevents_test

import (
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// seedNames writes down what seeds are called.
type seedNames []string

func (n *seedNames) NameSeed(seed uint64, lora, salt string) {
	if seed != hashing.LocalSeed(lora, salt) {
		lora = "wrong seed"
	}
	*n = append(*n, lora+"/"+salt)
}

// TestSeedNames shows that every adapter and salt of a stream is named once, and
// the plain seed never.
func TestSeedNames(t *testing.T) {
	var names seedNames
	conv := kvevents.NewConverter(plain4, 0, nil)
	conv.Seeds = &names
	one := []uint64{1}
	for range 2 {
		conv.Apply(decode(t, message(
			stored(one, nil), stored(one, dict{"lora_name": "ad"}), stored(one, dict{"cache_salt": "s"}),
			stored(one, dict{"lora_name": "ad", "cache_salt": "s"}), stored(one, dict{"lora_name": "child", "parent_block_hash": 9}),
		)), newRecorder(), &kvevents.Tally{})
	}
	if want := (seedNames{"ad/", "/s", "ad/s", "child/"}); !slices.Equal(names, want) {
		t.Errorf("named %q, want %q", names, want)
	}
}
