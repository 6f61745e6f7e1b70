package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

// TestEncode proves that a JSON body becomes the message that it describes, with
// all 64 bits of its hashes, and that what is no message is refused.
func TestEncode(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want any // nil: refused
	}{
		"batch": {
			`[{"type": "BlockRemoved", "block_hashes": [18446744073709551615, -1], "medium": null}]`,
			[]any{2.5, []any{map[string]any{
				"type": "BlockRemoved", "block_hashes": []any{uint64(1<<64 - 1), int8(-1)}, "medium": nil,
			}}, nil},
		},
		"bare event":   {`{"event_type": "cleared", "timestamp": 1.5}`, map[string]any{"event_type": "cleared", "timestamp": 1.5}},
		"array event":  {`[["AllBlocksCleared"]]`, []any{2.5, []any{[]any{"AllBlocksCleared"}}, nil}},
		"no JSON":      {`[{]`, nil},
		"two values":   {`{} {}`, nil},
		"no event":     {`17`, nil},
		"empty":        {``, nil},
		"out of range": {`[1e999]`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := encode(strings.NewReader(tc.body), time.UnixMilli(2500))
			if (err == nil) != (tc.want != nil) {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				return
			}
			var got any
			if err := msgpack.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNames proves that names are such that a shell can read the output.
func TestNames(t *testing.T) {
	for args, ok := range map[string]bool{
		"rank0 store_1": true, "": false, "a a": false, "0a": false, "a-b": false, "a;b": false,
	} {
		if err := checkNames(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%q: %v", args, err)
		}
	}
}
