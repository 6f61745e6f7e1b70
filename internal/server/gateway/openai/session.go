package openai

import (
	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/identity"
)

// sessionFields returns the members by which a body says to which session it belongs: session_id of vLLM (pull request 48048)
// and SGLang, and vllm_xargs with agentic_context of vllm-router (src/program_scheduling/identity.rs). What has another form is
// skipped: the engine that has the member refuses it.
func sessionFields() []bodyscan.Field[Request] {
	return []bodyscan.Field[Request]{
		field("session_id", func(s *bodyscan.Scanner, r *Request) { readName(s, &r.said().Session) }),
		field("vllm_xargs", func(s *bodyscan.Scanner, r *Request) {
			readMembers(s, func(name string) {
				switch name {
				case "session_id":
					readName(s, &r.said().Extra)
				case "agentic_context":
					readAgenticContext(s, r.said())
				default:
					s.Skip()
				}
			})
		}),
	}
}

// said returns what the body says of its session.
func (r *Request) said() *identity.Body {
	if r.Session == nil {
		r.Session = new(identity.Body)
	}
	return r.Session
}

// maxContext is the largest length of an agentic_context that is a text, in bytes (vllm-router).
const maxContext = 16 << 10

// readAgenticContext reads an agentic_context: an object, or a text with one.
func readAgenticContext(s *bodyscan.Scanner, b *identity.Body) {
	if s.Next() == '"' {
		if text := s.Text(); len(text) <= maxContext {
			inner := *b
			if scan(text, func(s *bodyscan.Scanner) { readProgram(s, &inner) }) == nil {
				*b = inner
			}
		}
		return
	}
	readProgram(s, b)
}

func readProgram(s *bodyscan.Scanner, b *identity.Body) {
	readMembers(s, func(name string) {
		switch name {
		case "program_id":
			readName(s, &b.Program)
		case "parent_program_id":
			readName(s, &b.Parent)
		case "expected_resume":
			b.LastOfProgram = s.Next() == 'f'
			s.Skip()
		default:
			s.Skip()
		}
	})
}

// readMembers calls read for each member of an object, and skips anything else.
func readMembers(s *bodyscan.Scanner, read func(name string)) {
	if s.Next() != '{' {
		s.Skip()
		return
	}
	for name := range s.Map() {
		read(string(name))
	}
}

// readName reads a text as the name of a session.
func readName(s *bodyscan.Scanner, name *string) {
	if s.Next() != '"' {
		s.Skip()
		return
	}
	*name = identity.Clip(s.Text())
}
