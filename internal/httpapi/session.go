package httpapi

import "github.com/select-service/select-service/internal/jsonscan"

// session is what a body of the 1.6 dialect says about the conversation that its
// prompt belongs to. Of the context only the id has a meaning here, but what else
// is in it has to have the right form.
type session struct {
	id      string // session_id
	inner   string // session_context.session_id
	context bool   // there is a session_context
}

// name returns the session's id, "" for none. The context's goes before the plain
// one.
func (s *session) name() string {
	if s.context {
		return s.inner
	}
	return s.id
}

func sessionFields[T any](of func(*T) *session) []jsonscan.Field[T] {
	return []jsonscan.Field[T]{
		may("session_id", func(t *T) *string { return &of(t).id }, (*jsonscan.Scanner).String),
		{Name: "session_context", Read: func(s *jsonscan.Scanner, t *T) {
			if !s.Null() {
				sessionShape.Read(s, of(t))
				of(t).context = true
			}
		}},
	}
}

var sessionShape = jsonscan.NewObject(
	must("session_id", func(c *session) *string { return &c.inner }, (*jsonscan.Scanner).String),
	checkedOnly("parent_session_id", func(s *jsonscan.Scanner) { s.Text() }),
	checkedOnly("session_final", func(s *jsonscan.Scanner) { s.Bool() }),
	checkedOnly("input_trigger", func(s *jsonscan.Scanner) { s.Variant("user_message", "tool_result", "other") }),
	checkedOnly("agent_headers", func(s *jsonscan.Scanner) {
		for range s.Map() {
			for range s.Array() {
				s.Text()
			}
		}
	}),
)

// checkedOnly describes a member that is not kept; it may be null.
func checkedOnly(name string, read func(*jsonscan.Scanner)) jsonscan.Field[session] {
	return jsonscan.Field[session]{Name: name, Read: func(s *jsonscan.Scanner, _ *session) {
		if !s.Null() {
			read(s)
		}
	}}
}
