package openai

import "strings"

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

// String returns the kind's name, for logs and metrics.
func (k Kind) String() string {
	return [...]string{"other", "chat", "completions", "responses", "messages"}[k]
}
