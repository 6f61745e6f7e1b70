package openai

// Error types of the APIs.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeNotFound       = "not_found_error"
	TypeOverloaded     = "overloaded_error"
	TypeServer         = "api_error"
	TypeAuthentication = "authentication_error"
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

// AppendErrorEvent appends the server-sent event with which a stream of the kind's API ends in an error.
func AppendErrorEvent(out []byte, kind Kind, message, typ, code string) []byte {
	switch kind {
	case Messages:
		out = append(out, "event: error\ndata: "...)
	case Responses: // the error is the response's
		out = append(append(out, "event: response.failed\ndata: "+`{"type":"response.failed","response":{"object":"response","status":"failed","error":{"code":`...), quoted(code)...)
		return append(append(append(out, `,"message":`...), quoted(message)...), "},\"output\":[]}}\n\n"...)
	default:
		out = append(out, "data: "...)
	}
	return append(AppendError(out, kind, message, typ, code), "\n\n"...)
}
