package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// messagesRequest is the body of Anthropic's POST /v1/messages. Max_tokens is only its upper bound: the
// model ends an answer after chatAnswer tokens by itself.
type messagesRequest struct {
	common
	System   json.RawMessage `json:"system"`
	Messages []message       `json:"messages"`
	Tools    []givenTool     `json:"tools"`
}

// givenTool is a tool of Anthropic's API, or of the responses API.
type givenTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"` // Anthropic's
	Parameters  json.RawMessage `json:"parameters"`   // of the responses API
}

// asTools returns tools in the form of chats, nil if there are none.
func asTools(given []givenTool) (json.RawMessage, error) {
	if len(given) == 0 {
		return nil, nil
	}
	var tools []any
	for _, t := range given {
		schema := t.Parameters
		if schema == nil {
			schema = t.InputSchema
		}
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
			"name": t.Name, "description": t.Description, "parameters": schema,
		}})
	}
	return json.Marshal(tools)
}

func (r *messagesRequest) length() int { return min(firstSet(r.MaxTokens, chatAnswer), chatAnswer) }

// tokens makes a chat of the messages, as vLLM does: the system prompt without the billing header,
// which is another one in each request, and results of tools as messages of their own.
func (r *messagesRequest) tokens() ([]uint32, error) {
	tools, err := asTools(r.Tools)
	if err != nil {
		return nil, badRequest("tools: %v", err)
	}
	c := chat{Tools: tools}
	if isSet(r.System) {
		text, err := systemText(r.System)
		if err != nil {
			return nil, badRequest("system: %v", err)
		}
		c.Messages = append(c.Messages, textMessage("system", text))
	}
	for i, m := range r.Messages {
		messages, err := fromAnthropic(m)
		if err != nil {
			return nil, badRequest("messages[%d].content: %v", i, err)
		}
		c.Messages = append(c.Messages, messages...)
	}
	return c.tokens()
}

// billingHeader begins a part of the system prompt of Claude Code that vLLM leaves out.
const billingHeader = "x-anthropic-billing-header"

func systemText(content json.RawMessage) (string, error) {
	var parts []struct{ Type, Text string }
	if content[0] == '"' {
		var text string
		return text, json.Unmarshal(content, &text)
	}
	if err := json.Unmarshal(content, &parts); err != nil {
		return "", err
	}
	var all strings.Builder
	for _, p := range parts {
		if !strings.HasPrefix(p.Text, billingHeader) {
			all.WriteString(p.Text)
		}
	}
	return all.String(), nil
}

// fromAnthropic returns the messages of a chat that a message of Anthropic's API is.
func fromAnthropic(m message) ([]message, error) {
	if !isSet(m.Content) || m.Content[0] == '"' {
		return []message{m}, nil
	}
	if m.Role == "system" {
		text, err := systemText(m.Content)
		return []message{textMessage(m.Role, text)}, err
	}
	var blocks []struct {
		Type, Text string
		Content    json.RawMessage
	}
	if err := json.Unmarshal(m.Content, &blocks); err != nil {
		return nil, err
	}
	var all []message
	var text strings.Builder
	for _, b := range blocks {
		text.WriteString(b.Text)
		if b.Type == "tool_result" {
			all = append(all, message{Role: "tool", Content: b.Content})
		}
	}
	if text.Len() > 0 || m.Role != "user" {
		all = append(all, textMessage(m.Role, text.String()))
	}
	return all, nil
}

func textMessage(role, text string) message {
	content, err := json.Marshal(text)
	if err != nil {
		panic(err) // a text
	}
	return message{Role: role, Content: content}
}

// serveMessages answers as vLLM's server does, with a text.
func (s *Server) serveMessages(w http.ResponseWriter, r *http.Request) {
	req := new(messagesRequest)
	if !decode(w, r, req) || !s.pass(w, r) {
		return
	}
	a, err := s.begin(r, req, form{id: "chatcmpl"})
	if err != nil {
		refuse(w, err)
		return
	}
	stop := "end_turn"
	if a.limited = req.MaxTokens == len(a.words); a.limited {
		stop = "max_tokens"
	}
	usage := func() any {
		return map[string]int{
			"input_tokens": a.prompt - a.cached, "output_tokens": len(a.words), "cache_creation_input_tokens": 0, "cache_read_input_tokens": a.cached,
		}
	}
	whole := func(content []any, stop, usage any) map[string]any {
		return map[string]any{
			"id": a.id, "type": "message", "role": "assistant", "content": content, "model": req.Model,
			"stop_reason": stop, "stop_sequence": nil, "usage": usage,
		}
	}
	if !req.Stream {
		a.wait(r)
		reply(w, http.StatusOK, whole([]any{map[string]string{"type": "text", "text": strings.Join(a.words, "")}}, stop, usage()))
		return
	}
	event := func(typ string, members map[string]any) {
		members["type"] = typ
		a.named(w, typ, members)
	}
	all := a.each(w, r, func(i int) {
		if i == 0 {
			event("message_start", map[string]any{"message": whole([]any{}, nil, map[string]int{"input_tokens": a.prompt, "output_tokens": 0})})
			event("content_block_start", map[string]any{"index": 0, "content_block": map[string]string{"type": "text", "text": ""}})
		}
		event("content_block_delta", map[string]any{"index": 0, "delta": map[string]string{"type": "text_delta", "text": a.words[i]}})
	})
	if all {
		event("content_block_stop", map[string]any{"index": 0})
		event("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": usage()})
		event("message_stop", map[string]any{})
	}
}

// named writes an event with a name.
func (a *answer) named(w http.ResponseWriter, name string, v any) {
	_, _ = fmt.Fprintf(w, "event: %s\n", name) // fails only if the client is gone
	a.line(w, v)
}
