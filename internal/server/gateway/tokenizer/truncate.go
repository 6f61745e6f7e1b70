package tokenizer

import (
	"context"
	"slices"

	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// shorten returns the tokens that the engine keeps of an answer of /tokenize, which has those of
// the whole prompt.
func (c *Client) shorten(ctx context.Context, r *Request, whole answer) (Prompt, error) {
	p := Prompt{IDs: whole.ids, ModelLength: whole.modelLength}
	length := r.ModelLength
	if whole.modelLength > 0 {
		length = whole.modelLength
	}
	cut := r.Truncation()
	n, known := cut.Kept(length)
	if !known {
		p.Whole = true
		return p, nil
	}
	if n >= len(p.IDs) {
		return p, nil
	}
	if cut.Side == "" && r.SpecialTokens() {
		// The engine's tokenizer cuts the text's tokens before it adds its own.
		plain, err := c.put(ctx, r, true)
		if err != nil {
			return Prompt{}, err
		}
		p.IDs = cutWithin(cut, whole.ids, plain.ids, n)
		return p, nil
	}
	p.IDs = cut.Cut(whole.ids, n)
	return p, nil
}

// cutWithin returns n tokens of a prompt in which the tokens of the text stand between those that
// the tokenizer adds: the latter, and the rest of the text's.
func cutWithin(cut openai.Truncation, whole, text []uint32, n int) []uint32 {
	added := len(whole) - len(text)
	before := added
	for before >= 0 && !slices.Equal(whole[before:before+len(text)], text) {
		before--
	}
	if before < 0 || n < added {
		return cut.Cut(whole, n)
	}
	return slices.Concat(whole[:before], cut.Cut(text, n-added), whole[before+len(text):])
}
