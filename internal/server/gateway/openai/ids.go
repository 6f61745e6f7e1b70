package openai

import "github.com/select-service/select-service/internal/codec/bodyscan"

// idFields returns the members of other routes that may have a prompt of token ids: of vLLM's
// /inference/v1/generate (token_ids), of SGLang's /generate, /encode and /classify (input_ids), and
// of embeddings and what else pools (input). With some members the ids are not all of the prompt,
// or not all that a cached block depends on.
func idFields() []bodyscan.Field[Request] {
	fields := []bodyscan.Field[Request]{field("input", readIDs(memberInput))}
	for _, name := range []string{"token_ids", "input_ids", "prompt_token_ids", "prompt"} {
		fields = append(fields, field(name, readIDs(memberIDs)))
	}
	for _, name := range []string{
		"features", "content_parts", "prompt_embeds",
		"image_data", "video_data", "audio_data", "input_embeds", "embed_overrides", "positional_embed_overrides",
		"session_params",
	} {
		fields = append(fields, field(name, readElsewhere))
	}
	return fields
}

// readIDs skips a member and notes its place if it may have token ids.
func readIDs(m member) func(*bodyscan.Scanner, *Request) {
	return func(s *bodyscan.Scanner, r *Request) {
		isList := s.Next() == '['
		start := s.Offset()
		s.Skip()
		if !isList || s.Err() != nil {
			return
		}
		if c := afterBracket(r.body[start:]); c == '[' || c >= '0' && c <= '9' {
			r.idLists++
			r.members[m] = span{start, s.Offset()}
		}
	}
}

// HasPromptIDs reports whether PromptIDs may have token ids.
func (r *Request) HasPromptIDs() bool { return r.Kind == Other && r.idLists == 1 && !r.Media }

// PromptIDs returns the token ids of the one prompt of a request for another route; nil if the
// body has none, a batch of prompts, or ids that no engine takes.
func (r *Request) PromptIDs() (ids []uint32) {
	if !r.HasPromptIDs() {
		return nil
	}
	list := r.raw(memberIDs)
	if r.members[memberInput].exists() {
		list = r.raw(memberInput)
	}
	err := scan(list, func(s *bodyscan.Scanner) {
		if afterBracket(list) != '[' {
			ids = s.AppendUint32s(nil)
			return
		}
		for i := range s.Array() {
			if i > 0 {
				s.Fail("a batch")
				return
			}
			ids = s.AppendUint32s(nil)
		}
	})
	if err != nil || len(ids) == 0 {
		return nil
	}
	return ids
}

// scan reads a value of a body with a scanner of scanners, and returns the first fault.
func scan(text []byte, read func(*bodyscan.Scanner)) error {
	s := scanners.Get().(*bodyscan.Scanner)
	defer func() {
		s.Reset(bodyscan.JSON, nil)
		scanners.Put(s)
	}()
	s.Reset(bodyscan.JSON, text)
	read(s)
	return s.End()
}
