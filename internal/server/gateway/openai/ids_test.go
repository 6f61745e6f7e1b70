package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// TestPromptIDs: token ids of one prompt are read from the body of any route; other bodies, those
// that engines refuse included, have none, and no fault.
func TestPromptIDs(t *testing.T) {
	for body, want := range map[string][]uint32{
		`{"token_ids":[1,2,3],"sampling_params":{"max_tokens":1},"features":null,"cache_salt":null}`: {1, 2, 3},
		` {"input_ids": [ 1 , 4294967295 ], "stream":true, "lora_path":null}`:                        {1, 4294967295},
		"\xef\xbb\xbf" + `{"prompt_token_ids":[7]}`:                                                  {7},
		`{"model":"m","input":[5,6]}`:                                                                {5, 6},
		`{"input_ids":[[3]],"lora_path":["a"],"extra_key":["b"],"cache_salt":["c"]}`:                 {3},
		`{"input_ids":[[8,9]]}`:                                                                      {8, 9},
		`{"prompt":[1]}`:                                                                             {1},
		`{"prompt":"1","token_ids":[2]}`:                                                             {2},

		`{"input_ids":[[1],[2]]}`:                       nil,
		`{"input":["a"]}`:                               nil,
		`{"input":"a"}`:                                 nil,
		`{"input":[1,"a"]}`:                             nil,
		`{"input":[1.5]}`:                               nil,
		`{"input":[-1]}`:                                nil,
		`{"input":[4294967296]}`:                        nil,
		`{"input":[]}`:                                  nil,
		`{"input":[[]]}`:                                nil,
		`{"input":[[1],2]}`:                             nil,
		`{"token_ids":[1],"input_ids":[1]}`:             nil,
		`{"token_ids":[1],"features":{"mm_hashes":{}}}`: nil,
		`{"input_ids":[1],"image_data":"x"}`:            nil,
		`{"input_ids":[1],"session_params":{"id":"s"}}`: nil,
		`{"query":"q","documents":["d"]}`:               nil,
		`{"tokens":[1,2]}`:                              nil, // /detokenize computes nothing
		`{"input":[1]`:                                  nil,
		`[1,2]`:                                         nil,
		`{"model":7,"input":[1]}`:                       nil,
		``:                                              nil,
	} {
		r, err := ParseRequest(Other, []byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if got := r.PromptIDs(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
		if want == nil {
			continue
		}
		if out := bytes.Join(r.Body("s", nil), nil); !json.Valid(out) {
			t.Errorf("%s becomes %s", body, out)
		}
	}
}

// TestPromptIDsTruncated: what pools a prompt shortens it by the members of TestTruncation, to the
// model's whole length, and vLLM's generate does not know them.
func TestPromptIDsTruncated(t *testing.T) {
	for body, want := range map[string][]uint32{
		`{"input":[1,2,3,4],"truncate_prompt_tokens":2}`:                           {3, 4},
		`{"input":[1,2,3,4],"truncate_prompt_tokens":2,"truncation_side":"right"}`: {1, 2},
		`{"input":[1,2,3,4],"truncate_prompt_tokens":-1}`:                          {2, 3, 4},
		`{"input":[1,2,3,4],"truncate_prompt_tokens":-2}`:                          {1, 2, 3, 4},
		`{"token_ids":[1,2,3,4],"truncate_prompt_tokens":2}`:                       {1, 2, 3, 4},
	} {
		r, _ := ParseRequest(Other, []byte(body))
		cut := r.Truncation()
		n, _ := cut.Kept(3)
		if got := cut.Cut(r.PromptIDs(), n); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}
