package openai

// Error types of the APIs.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeNotFound       = "not_found_error"
	TypeOverloaded     = "overloaded_error"
	TypeServer         = "api_error"
)

// AppendError appends an error of the kind's API: type is one of the constants, code a
// word for programs, such as model_not_found.
func AppendError(out []byte, kind Kind, message, typ, code string) []byte {
	out = append(out, '{')
	if kind == Messages { // Anthropic's errors say what they are
		out = append(out, `"type":"error",`...)
	}
	out = append(append(out, `"error":{"message":`...), quoted(message)...)
	out = append(append(out, `,"type":`...), quoted(typ)...)
	out = append(append(out, `,"param":null,"code":`...), quoted(code)...)
	return append(out, "}}"...)
}
