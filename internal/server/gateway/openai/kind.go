package openai

import (
	"strings"

	"github.com/select-service/select-service/internal/codec/bodyscan"
)

// Kind is the API that a request is for.
type Kind uint8

// The kinds of requests. All but Other have a prompt whose tokens can be asked for.
const (
	Other       Kind = iota // any other route; of its prompt only token ids are read
	Chat                    // POST …/v1/chat/completions
	Completions             // POST …/v1/completions
	Responses               // POST …/v1/responses
	Messages                // POST …/v1/messages, Anthropic's
)

// kinds are the ends of the paths. A route of the gateway may put a prefix before them.
var kinds = []struct {
	suffix string
	kind   Kind
}{
	{"/v1/chat/completions", Chat},
	{"/v1/completions", Completions},
	{"/v1/responses", Responses},
	{"/v1/messages", Messages},
}

// KindOf returns the kind of a request by its method and its path, which may have a
// query.
func KindOf(method, path string) Kind {
	if method != "POST" {
		return Other
	}
	path, _, _ = strings.Cut(path, "?")
	for _, k := range kinds {
		if strings.HasSuffix(path, k.suffix) {
			return k.kind
		}
	}
	return Other
}

// KindOfBody returns the kind of a request by the members of its body, for callers that are not told
// the path; Other: it has no prompt. A chat with a member system has Anthropic's form. The error is a
// *bodyscan.Error.
func KindOfBody(body []byte) (Kind, error) {
	has := make(map[string]bool)
	err := scan(body, func(s *bodyscan.Scanner) {
		for name := range s.Map() {
			for _, n := range [...]string{"messages", "system", "input", "prompt"} {
				has[n] = has[n] || n == string(name)
			}
			s.Skip()
		}
	})
	switch {
	case err != nil:
		return Other, err
	case has["messages"] && has["system"]:
		return Messages, nil
	case has["messages"]:
		return Chat, nil
	case has["input"]: // a response's prompt names one that is elsewhere
		return Responses, nil
	case has["prompt"]:
		return Completions, nil
	}
	return Other, nil
}

// String returns the kind's name, for logs and metrics.
func (k Kind) String() string {
	return [...]string{"other", "chat", "completions", "responses", "messages"}[k]
}
