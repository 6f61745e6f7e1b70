package openai

import (
	"encoding/json"
	"errors"
)

// ErrNotConvertible reports that the tokens of a prompt cannot be asked for: the body does not
// have all of the prompt, or has parts that the tokenizer's routes do not accept.
var ErrNotConvertible = errors.New("the prompt cannot be converted for the tokenizer")

// RenderBody returns the question to a renderer for the prompt's tokens: the kind of its route,
// and the body in pieces with the given model. Anthropic's messages become those of a chat, as
// in vLLM 0.32.0. The error is ErrNotConvertible.
func (r *Request) RenderBody(model string) (Kind, [][]byte, error) {
	switch {
	case r.Media:
		return 0, nil, ErrNotConvertible
	case r.Kind == Messages:
		body, err := r.chat(&object{render: true}, model)
		return Chat, body, err
	}
	return r.Kind, r.edited(r.edits(model, "")), nil
}

// TokenizeBody returns the body of vLLM's POST /tokenize for the prompt, the first one
// of a batch, in pieces. With plain, the tokenizer adds no tokens before and after the text. The
// error is ErrNotConvertible.
func (r *Request) TokenizeBody(model string, plain bool) ([][]byte, error) {
	b := &object{plain: plain}
	switch {
	case r.Media || !r.isNull(memberSuffix): // a suffix is put into the prompt in a form of the model's own
		return nil, ErrNotConvertible
	case r.Kind != Completions:
		return r.chat(b, model)
	}
	prompt := r.raw(memberPrompt)
	if len(prompt) > 0 && prompt[0] == '[' { // the first of a batch
		var all []json.RawMessage
		if err := json.Unmarshal(prompt, &all); err != nil || len(all) == 0 {
			return nil, ErrNotConvertible
		}
		prompt = all[0]
	}
	if len(prompt) == 0 || prompt[0] != '"' {
		return nil, ErrNotConvertible
	}
	b.model(model)
	b.member("prompt", prompt)
	r.addSpecial(b)
	return b.close(), nil
}

// SpecialTokens reports whether the tokenizer adds tokens of its own before and after the prompt's
// text, if it has such tokens.
func (r *Request) SpecialTokens() bool {
	switch r.Kind {
	case Completions:
		return string(r.raw(memberAddSpecial)) != "false"
	case Chat:
		return string(r.raw(memberAddSpecial)) == "true"
	case Responses: // unlike a chat
		return true
	}
	return false
}

// addSpecial adds add_special_tokens, unless it is what /tokenize does by itself.
func (r *Request) addSpecial(b *object) {
	switch {
	case b.plain:
		b.member("add_special_tokens", []byte("false"))
	case r.Kind == Responses:
		b.member("add_special_tokens", []byte("true"))
	default:
		r.copyTo(b, memberAddSpecial, "add_special_tokens")
	}
}

// chat returns a body with the prompt as messages of a chat, and the arguments of its template.
func (r *Request) chat(b *object, model string) ([][]byte, error) {
	b.model(model)
	switch r.Kind {
	case Chat:
		return r.plainChat(b)
	case Messages:
		return r.anthropicChat(b)
	case Responses:
		return r.responsesChat(b)
	}
	return nil, ErrNotConvertible
}

// object is a JSON object being written, in pieces: values may be large, and where possible are
// slices of the request's body.
type object struct {
	pieces [][]byte
	plain  bool // see TokenizeBody
	render bool // it is for a renderer, which takes all members of a chat; else for /tokenize
}

// model adds the model, unless it is empty.
func (o *object) model(name string) {
	if name != "" {
		o.member("model", quoted(name))
	}
}

func (o *object) member(name string, value []byte) {
	head := `,"`
	if o.pieces == nil {
		head = `{"`
	}
	o.pieces = append(o.pieces, []byte(head+name+`":`), value)
}

// close returns the finished object. It must have a member.
func (o *object) close() [][]byte { return append(o.pieces, []byte{'}'}) }

// copyTo copies a member's text from the request's body, unless it is missing or null.
func (r *Request) copyTo(b *object, m member, name string) {
	if !r.isNull(m) {
		b.member(name, r.raw(m))
	}
}

// plainChat copies the members of a chat that /tokenize has too.
func (r *Request) plainChat(b *object) ([][]byte, error) {
	if r.isNull(memberMessages) {
		return nil, ErrNotConvertible
	}
	r.copyTo(b, memberMessages, "messages")
	r.copyTo(b, memberTools, "tools")
	r.copyTo(b, memberTemplate, "chat_template")
	r.copyTo(b, memberAddGeneration, "add_generation_prompt")
	r.copyTo(b, memberContinueFinal, "continue_final_message")
	r.addSpecial(b)
	if err := r.templateArguments(b, r.raw(memberReasoningEffort)); err != nil {
		return nil, err
	}
	return b.close(), nil
}

// templateArguments adds the arguments of the chat's template. effort is the reasoning effort, in
// JSON. It and the documents are members of their own in a chat, which take precedence over those
// of chat_template_kwargs; /tokenize has only the latter.
func (r *Request) templateArguments(b *object, effort []byte) error {
	effort, documents := given(effort), given(r.raw(memberDocuments))
	if b.render && effort != nil {
		b.member("reasoning_effort", effort)
		effort = nil
	}
	if effort == nil && documents == nil {
		r.copyTo(b, memberTemplateKwargs, "chat_template_kwargs")
		return nil
	}
	arguments := map[string]json.RawMessage{}
	if !r.isNull(memberTemplateKwargs) && json.Unmarshal(r.raw(memberTemplateKwargs), &arguments) != nil {
		return ErrNotConvertible
	}
	if documents != nil {
		arguments["documents"] = documents
	}
	if effort != nil {
		arguments["reasoning_effort"] = effort
		if _, own := arguments["enable_thinking"]; !own { // as vLLM does
			arguments["enable_thinking"] = json.RawMessage("true")
			if string(effort) == `"none"` {
				arguments["enable_thinking"] = json.RawMessage("false")
			}
		}
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		return ErrNotConvertible
	}
	b.member("chat_template_kwargs", text)
	return nil
}

// given returns a value, nil if it is missing or null.
func given(raw []byte) []byte {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return raw
}

// chatMessage is a message of a chat in the form that templates take.
type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"` // a text, or parts
	Reasoning  string     `json:"reasoning,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID *string    `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"` // function
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // JSON in a string
}

type textPart struct {
	Type string `json:"type"` // text
	Text string `json:"text"`
}

type tool struct {
	Type     string       `json:"type"` // function
	Function toolFunction `json:"function"`
}

type toolFunction struct {
	Name        string          `json:"name"`
	Description *string         `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	toolFlags
}

// toolFlags are members of a tool that a template may show.
type toolFlags struct {
	Strict       *bool `json:"strict,omitempty"`
	DeferLoading *bool `json:"defer_loading,omitempty"`
}
