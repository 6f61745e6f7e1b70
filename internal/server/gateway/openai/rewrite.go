package openai

import (
	"encoding/json"
	"slices"
)

// Body returns the body for the engine, in pieces that may be slices of the parsed body. It has
// the given cache salt at its top level; if salt is empty or already there, it is the body as
// it came, but for a byte order mark: vLLM's server skips one, SGLang's (orjson) refuses it.
func (r *Request) Body(salt string) [][]byte {
	return r.edited("", salt)
}

// edit replaces a part of the body.
type edit struct {
	at   span
	text []byte
}

// edited returns the body with the model and the salt replaced. An empty model or salt is not
// replaced.
func (r *Request) edited(model, salt string) [][]byte {
	var edits []edit
	if model != "" && model != r.Model {
		edits = append(edits, r.member(memberModel, "model", model))
	}
	if salt != "" && !r.hasSalt(salt) {
		edits = append(edits, r.member(memberSalt, "cache_salt", salt))
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.at.start - b.at.start })
	pieces := make([][]byte, 0, 2*len(edits)+1)
	from := 0
	for _, e := range edits {
		if e.at.start > from {
			pieces = append(pieces, r.body[from:e.at.start])
		}
		pieces, from = append(pieces, e.text), e.at.end
	}
	return append(pieces, r.body[from:])
}

// member returns the edit that sets a member to the given string: it replaces the value, or
// inserts the member at the object's start.
func (r *Request) member(m member, name, text string) edit {
	value := quoted(text)
	if at := r.members[m]; at.exists() {
		return edit{at, value}
	}
	value = append([]byte(`"`+name+`":`), value...)
	if c := afterBracket(r.body[r.open-1:]); c != '}' {
		value = append(value, ',')
	}
	return edit{span{r.open, r.open}, value}
}

// hasSalt reports whether the body's own cache_salt is the given one.
func (r *Request) hasSalt(salt string) bool {
	return r.members[memberSalt].exists() && string(r.raw(memberSalt)) == string(quoted(salt))
}

// quoted returns a text as a JSON string.
func quoted(text string) []byte {
	out, err := json.Marshal(text)
	if err != nil {
		panic("openai: " + err.Error()) // a string can always be written
	}
	return out
}
