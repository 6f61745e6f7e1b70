package openai

import (
	"bytes"

	"github.com/select-service/select-service/internal/codec/bodyscan"
)

// readPrompts reads the prompt of a completion: a text, token ids, or a list of one of
// them.
func readPrompts(s *bodyscan.Scanner, r *Request) {
	switch s.Next() {
	case '"':
		r.Prompts = 1
		r.countText(skipText(s))
		return
	case 'n':
		s.Null()
		return
	case '[':
		if c := afterBracket(r.body[s.Offset():]); c != '"' && c != '[' && c != ']' {
			r.Prompts = 1
			r.Tokens = s.AppendUint32s(nil)
			return
		}
	}
	for i := range s.Array() {
		r.Prompts++
		switch {
		case s.Next() == '"':
			n := skipText(s)
			r.TextBytes += n
			if i == 0 {
				r.FirstBytes += n
			}
		case i == 0:
			r.Tokens = s.AppendUint32s([]uint32{})
		default:
			for range s.Array() {
				s.Uint32()
				r.FurtherTokens++
			}
		}
	}
}

// afterBracket returns the first byte of an array's first element, or the bracket
// that closes it.
func afterBracket(array []byte) byte {
	rest := bytes.TrimLeft(array[1:], " \t\r\n")
	if len(rest) == 0 {
		return 0
	}
	return rest[0]
}

// skipText skips a string and returns how many bytes its text takes in the body, escapes
// included.
func skipText(s *bodyscan.Scanner) int {
	start := s.Offset()
	s.Skip()
	return s.Offset() - start - 2
}

// readMessages reads the messages of a chat.
func readMessages(s *bodyscan.Scanner, r *Request) {
	r.Prompts = 1
	for range s.Array() {
		message.Read(s, r)
	}
}

// message is a message of a chat, and an item of the input of a response.
var message = bodyscan.NewObject(field("content", readContent), field("output", readContent))

// readInput reads the input of a response: a text or items.
func readInput(s *bodyscan.Scanner, r *Request) {
	r.Prompts = 1
	if s.Next() == '"' {
		r.countText(skipText(s))
		return
	}
	for range s.Array() {
		message.Read(s, r)
	}
}

// readSystem reads the system prompt of Anthropic's API: a text or parts.
func readSystem(s *bodyscan.Scanner, r *Request) { readContent(s, r) }

// readContent counts the text of a message's content: a string, or parts.
func readContent(s *bodyscan.Scanner, r *Request) {
	switch s.Next() {
	case '"':
		r.countText(skipText(s))
	case '[':
		for range s.Array() {
			if s.Next() == '"' {
				r.countText(skipText(s))
				continue
			}
			p := part{request: r}
			readPart(s, &p)
			if s.Err() == nil && !p.isText() {
				r.Media = true
			}
		}
	default: // null, or for the engine to refuse
		s.Skip()
	}
}

// part is a part of a message's content.
type part struct {
	request *Request
	kind    string
	text    bool // it has a text
}

// readPart reads a part. The content of a part may have parts itself.
func readPart(s *bodyscan.Scanner, p *part) {
	for name := range s.Map() {
		switch string(name) {
		case "type":
			p.kind = s.String()
		case "content":
			readContent(s, p.request)
		case "text", "refusal", "thinking":
			p.read(s)
		default:
			s.Skip()
		}
	}
}

func (p *part) read(s *bodyscan.Scanner) {
	if s.Next() != '"' {
		s.Skip()
		return
	}
	p.text = true
	p.request.countText(skipText(s))
}

// isText reports whether the part's tokens follow from its text alone. An unknown type counts
// as media, so that load decides.
func (p *part) isText() bool {
	switch p.kind {
	case "":
		return p.text
	case "text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking",
		"reasoning_text", "summary_text", "tool_use", "tool_result", "tool_reference":
		return true
	}
	return false
}
