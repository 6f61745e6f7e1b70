package openai

import (
	"encoding/json"
	"errors"
)

// ErrNotConvertible says that a prompt's tokens cannot be asked for, as the body does
// not have all of it, or has what no tokenizer's route takes.
var ErrNotConvertible = errors.New("the prompt cannot be converted for the tokenizer")

// RenderBody returns what a renderer is asked for the prompt's tokens: the kind of the
// route, and the body in pieces, with the given model. Anthropic's messages are
// converted to those of a chat as vLLM (0.32.0) does it. The error is
// ErrNotConvertible.
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

// chat returns the prompt as the messages of a chat, with what its template is given.
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

// object is a JSON object that is being written, in pieces: values may be large, and are
// parts of the request's body where they stand there so.
type object struct{ pieces [][]byte }

// newObject starts a body with its model; empty: without one.
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

// close returns the object, which has a member.
func (b *object) close() [][]byte { return append(b.pieces, []byte{'}'}) }

// copyTo gives a member as it stands in the body, unless it is null.
func (r *Request) copyTo(b *object, m member, name string) {
	if !r.isNull(m) {
		b.member(name, r.raw(m))
	}
}

// plainChat takes from a chat what /tokenize takes. What the route for chats gives to
// the template itself, and /tokenize does not know, goes in chat_template_kwargs.
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
