package openai

import (
	"math"
	"strconv"
	"strings"

	"github.com/select-service/select-service/internal/codec/bodyscan"
)

// Truncation says which tokens an engine keeps of a longer prompt, by the members
// truncate_prompt_tokens and truncation_side of chats, completions and embeddings, and truncation
// of responses. The rules are those of TokenizeParams in vLLM 0.33. The zero value keeps all.
type Truncation struct {
	// Given: the prompt may be shortened.
	Given bool
	// Tokens is how many tokens are kept; negative: as many as the model takes.
	Tokens int
	// Output: the request asks for output, for which a token of the model's length is left.
	Output bool
	// Side is where the prompt is cut: "right" keeps the first tokens, "left" the last ones.
	// Empty: the last ones of the text; tokens that the tokenizer itself adds before and
	// after the text stay.
	Side string
}

// Truncation returns how the body's prompt is shortened. Values that the engine refuses shorten
// nothing.
func (r *Request) Truncation() Truncation {
	switch {
	case r.Kind == Other && !r.members[memberInput].exists(): // vLLM's generate has no such members
	case r.Kind == Responses: // null is not "disabled"
		if at := r.members[memberTruncation]; at.exists() && string(r.raw(memberTruncation)) != `"disabled"` {
			return Truncation{Given: true, Tokens: -1, Output: r.asksForOutput()}
		}
	case !r.isNull(memberTruncateTokens):
		if n, ok := integer(r.raw(memberTruncateTokens)); ok && n >= -1 {
			return Truncation{Given: true, Tokens: n, Output: r.asksForOutput(), Side: r.truncationSide()}
		}
	}
	return Truncation{}
}

func (r *Request) truncationSide() string {
	switch string(r.raw(memberTruncationSide)) {
	case `"left"`:
		return "left"
	case `"right"`:
		return "right"
	}
	return ""
}

// asksForOutput reports whether the request's limit on generated tokens is not 0. In a completion,
// a limit of null is 0, and none at all is 16.
func (r *Request) asksForOutput() bool {
	if r.Kind == Other {
		return false
	}
	limit := memberMaxTokens
	if !r.isNull(memberMaxCompletionTokens) {
		limit = memberMaxCompletionTokens
	}
	if r.isNull(limit) {
		return r.Kind != Completions || !r.members[limit].exists()
	}
	n, ok := integer(r.raw(limit))
	return !ok || n != 0
}

// integer reads an integer as vLLM does: also one that is a string, or a number with a fraction
// of 0.
func integer(raw []byte) (n int, ok bool) {
	text := strings.TrimSpace(strings.Trim(string(raw), `"`))
	if n, err := strconv.Atoi(text); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int(f), true
}

// Kept returns how many tokens of a prompt are kept at most. modelLength is the context length
// of the model in tokens, 0: unknown. Without it, known is false if the number depends on it.
func (t Truncation) Kept(modelLength int) (n int, known bool) {
	switch {
	case !t.Given:
		return math.MaxInt, true
	case t.Tokens >= 0:
		return t.Tokens, true
	case modelLength <= 0:
		return math.MaxInt, false
	case t.Output:
		return modelLength - 1, true
	}
	return modelLength, true
}

// Cut returns the tokens that are kept of a prompt of token ids if at most n are. It is a part
// of ids.
func (t Truncation) Cut(ids []uint32, n int) []uint32 {
	switch {
	case n >= len(ids):
		return ids
	case t.Side == "right":
		return ids[:n]
	}
	return ids[len(ids)-n:]
}

// EstimateTokens estimates the tokens of all prompts together, of each of which at most kept
// count. Text has bytesPerToken.
func (r *Request) EstimateTokens(bytesPerToken, kept int) int {
	if r.Prompts <= 1 || kept == math.MaxInt {
		return min(kept, max(r.TextBytes/bytesPerToken, len(r.Tokens)+r.FurtherTokens))
	}
	all := 0
	_ = scan(r.raw(memberPrompt), func(s *bodyscan.Scanner) { // it has been read before
		for range s.Array() {
			n := 0
			if s.Next() == '"' {
				n = skipText(s) / bytesPerToken
			} else {
				for range s.Array() {
					s.Skip()
					n++
				}
			}
			all += min(kept, n)
		}
	})
	return all
}

// transfer has the prompt of a decode engine's request whose prefill has been done elsewhere.
var transfer = bodyscan.NewObject(bodyscan.Field[[]uint32]{Name: "prompt_token_ids", Read: func(s *bodyscan.Scanner, ids *[]uint32) {
	if !s.Null() {
		*ids = s.AppendUint32s(nil)
	}
}})

// Transfers reports whether TransferredTokens may have tokens.
func (r *Request) Transfers() bool {
	return !r.isNull(memberTransfer) && !r.Media && string(r.raw(memberEcho)) != "true"
}

// TransferredTokens returns the token ids of a chat's prompt if the body has them in
// kv_transfer_params, as vLLM's decode engines take them in place of the messages; else nil. They
// are not shortened.
func (r *Request) TransferredTokens() (ids []uint32) {
	if !r.Transfers() {
		return nil
	}
	err := scan(r.raw(memberTransfer), func(s *bodyscan.Scanner) { transfer.Read(s, &ids) })
	if err != nil || len(ids) == 0 {
		return nil // for the engine to refuse
	}
	return ids
}
