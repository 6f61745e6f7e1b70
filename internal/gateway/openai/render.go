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
		body, err := r.chat(model)
		return Chat, body, err
	}
	return r.Kind, r.edited(model, ""), nil
}

// TokenizeBody returns the body of vLLM's POST /tokenize for the prompt, the first one
// of a batch, in pieces. The error is ErrNotConvertible.
func (r *Request) TokenizeBody(model string) ([][]byte, error) {
	if r.Media {
		return nil, ErrNotConvertible
	}
	if r.Kind != Completions {
		return r.chat(model)
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
	b := newObject(model)
	b.member("prompt", prompt)
	r.copyTo(b, memberAddSpecial, "add_special_tokens")
	return b.close(), nil
}

// chat returns a body with the prompt as messages of a chat, and the arguments of its template.
func (r *Request) chat(model string) ([][]byte, error) {
	b := newObject(model)
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
type object struct{ pieces [][]byte }

// newObject starts a body with its model; without one if model is empty.
func newObject(model string) *object {
	b := &object{}
	if model != "" {
		b.member("model", quoted(model))
	}
	return b
}

func (b *object) member(name string, value []byte) {
	head := `,"`
	if b.pieces == nil {
		head = `{"`
	}
	b.pieces = append(b.pieces, []byte(head+name+`":`), value)
}

// close returns the finished object. It must have a member.
func (b *object) close() [][]byte { return append(b.pieces, []byte{'}'}) }

// copyTo copies a member's text from the request's body, unless it is missing or null.
func (r *Request) copyTo(b *object, m member, name string) {
	if !r.isNull(m) {
		b.member(name, r.raw(m))
	}
}

// plainChat copies the members of a chat that /tokenize has too. Arguments that the chat route
// passes to the template, but that /tokenize does not have, go into chat_template_kwargs.
func (r *Request) plainChat(b *object) ([][]byte, error) {
	if r.isNull(memberMessages) {
		return nil, ErrNotConvertible
	}
	r.copyTo(b, memberMessages, "messages")
	r.copyTo(b, memberTools, "tools")
	r.copyTo(b, memberTemplate, "chat_template")
	r.copyTo(b, memberAddGeneration, "add_generation_prompt")
	r.copyTo(b, memberContinueFinal, "continue_final_message")
	r.copyTo(b, memberAddSpecial, "add_special_tokens")
	kwargs := r.raw(memberTemplateKwargs)
	if !r.isNull(memberReasoningEffort) || !r.isNull(memberDocuments) {
		given := map[string]json.RawMessage{}
		if !r.isNull(memberTemplateKwargs) && json.Unmarshal(kwargs, &given) != nil {
			return nil, ErrNotConvertible
		}
		for _, m := range []struct {
			member member
			name   string
		}{{memberReasoningEffort, "reasoning_effort"}, {memberDocuments, "documents"}} {
			if _, own := given[m.name]; !own && !r.isNull(m.member) {
				given[m.name] = r.raw(m.member)
			}
		}
		if _, own := given["enable_thinking"]; !own && !r.isNull(memberReasoningEffort) { // as vLLM does
			given["enable_thinking"] = json.RawMessage("true")
			if string(r.raw(memberReasoningEffort)) == `"none"` {
				given["enable_thinking"] = json.RawMessage("false")
			}
		}
		kwargs, _ = json.Marshal(given) // of raw messages that were checked
	}
	if len(kwargs) > 0 && string(kwargs) != "null" {
		b.member("chat_template_kwargs", kwargs)
	}
	return b.close(), nil
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
}
