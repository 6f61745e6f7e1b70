package openai

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Body returns the body for the engine, in pieces that may be slices of the parsed body. It has
// the given cache salt at its top level; if salt is empty or already there, it is the body as
// it came, but for a byte order mark: vLLM's server skips one, SGLang's (orjson) refuses it.
//
// hints is the value of SGLang's kv_hints; empty: the body has none. One of the client's own is not
// passed on, because the engine would fetch KV caches from whatever host it names.
func (r *Request) Body(salt string, hints []byte) [][]byte {
	edits := r.edits("", salt)
	switch has := r.members[memberKVHints].exists(); {
	case len(hints) > 0 && r.open > 0:
		edits = append(edits, r.member(memberKVHints, "kv_hints", hints))
	case has:
		edits = append(edits, edit{r.members[memberKVHints], []byte("null")})
	}
	return r.edited(edits)
}

// edit replaces a part of the body.
type edit struct {
	at   span
	text []byte
}

// edits returns how the model and the salt are replaced. An empty model or salt is not replaced.
func (r *Request) edits(model, salt string) (edits []edit) {
	if model != "" && model != r.Model {
		edits = append(edits, r.member(memberModel, "model", quoted(model)))
	}
	if salt != "" && !r.hasSalt(salt) {
		edits = append(edits, r.member(memberSalt, "cache_salt", quoted(salt)))
	}
	return edits
}

// edited returns the body with parts replaced.
func (r *Request) edited(edits []edit) [][]byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.at.start - b.at.start })
	pieces := make([][]byte, 0, 2*len(edits)+1)
	from := 0
	for i, e := range edits {
		if e.at.start > from {
			pieces = append(pieces, r.body[from:e.at.start])
		}
		if i > 0 && e.at == edits[i-1].at && !bytes.HasSuffix(edits[i-1].text, []byte(",")) { // two new members of an empty object
			pieces = append(pieces, []byte(","))
		}
		pieces, from = append(pieces, e.text), e.at.end
	}
	return append(pieces, r.body[from:])
}

// member returns the edit that gives a member a value: it replaces the old one, or inserts the
// member at the object's start.
func (r *Request) member(m member, name string, value []byte) edit {
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
