package openai

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// responsesRequest is the body of POST /v1/responses.
type responsesRequest struct {
	common
	Instructions    string          `json:"instructions"`
	Input           json.RawMessage `json:"input"` // a text, or items
	Tools           []givenTool     `json:"tools"`
	MaxOutputTokens int             `json:"max_output_tokens"`
}

func (r *responsesRequest) length() int { return firstSet(r.MaxOutputTokens, chatAnswer) }

// tokens makes a chat of the input, as vLLM does. Of the tools it takes functions.
func (r *responsesRequest) tokens() ([]uint32, error) {
	var functions []givenTool
	for _, t := range r.Tools {
		if t.Type == "function" {
			functions = append(functions, t)
		}
	}
	tools, err := asTools(functions)
	if err != nil {
		return nil, badRequest("tools: %v", err)
	}
	c := chat{Tools: tools}
	if r.Instructions != "" {
		c.Messages = append(c.Messages, textMessage("system", r.Instructions))
	}
	var text string
	if json.Unmarshal(r.Input, &text) == nil {
		c.Messages = append(c.Messages, textMessage("user", text))
		return c.tokens()
	}
	var items []struct {
		Type, Role      string
		Content, Output json.RawMessage
	}
	if err := json.Unmarshal(r.Input, &items); err != nil {
		return nil, badRequest("input: %v", err)
	}
	for _, it := range items {
		switch it.Type {
		case "", "message":
			c.Messages = append(c.Messages, message{Role: it.Role, Content: it.Content})
		case "function_call_output":
			c.Messages = append(c.Messages, message{Role: "tool", Content: it.Output})
		}
	}
	return c.tokens()
}

// serveResponses answers as vLLM's server does, with one message.
func (s *Server) serveResponses(w http.ResponseWriter, r *http.Request) {
	req := new(responsesRequest)
	if !decode(w, r, req) || !s.pass(w, r) {
		return
	}
	a, err := s.begin(r, req, form{id: "resp"})
	if err != nil {
		refuse(w, err)
		return
	}
	a.limited = req.MaxOutputTokens > 0
	if req.Stream {
		a.streamResponse(w, r)
		return
	}
	a.wait(r)
	reply(w, http.StatusOK, a.response(a.ended(), a.message("completed", a.text())))
}

// streamResponse sends the events of a response with one message of one text.
func (a *answer) streamResponse(w http.ResponseWriter, r *http.Request) {
	sequence := 0
	event := func(typ string, members map[string]any) {
		members["type"], members["sequence_number"] = typ, sequence
		sequence++
		a.named(w, typ, members)
	}
	part := func(typ string, members map[string]any) {
		members["item_id"], members["output_index"], members["content_index"] = a.messageID(), 0, 0
		event(typ, members)
	}
	all := a.each(w, r, func(i int) {
		if i == 0 {
			event("response.created", map[string]any{"response": a.response("in_progress")})
			event("response.in_progress", map[string]any{"response": a.response("in_progress")})
			event("response.output_item.added", map[string]any{"output_index": 0, "item": a.message("in_progress")})
			part("response.content_part.added", map[string]any{"part": outputText("")})
		}
		part("response.output_text.delta", map[string]any{"delta": a.words[i], "logprobs": []any{}})
	})
	if all {
		part("response.output_text.done", map[string]any{"text": a.text(), "logprobs": []any{}})
		part("response.content_part.done", map[string]any{"part": outputText(a.text())})
		event("response.output_item.done", map[string]any{"output_index": 0, "item": a.message("completed", a.text())})
		event("response.completed", map[string]any{"response": a.response(a.ended(), a.message("completed", a.text()))})
	}
}

func (a *answer) text() string { return strings.Join(a.words, "") }

func (a *answer) messageID() string { return "msg_" + a.id }

// ended is the status of the whole response: the model has ended it, or its client's limit has.
func (a *answer) ended() string {
	if a.limited {
		return "incomplete"
	}
	return "completed"
}

// message is the item of the output, with its texts.
func (a *answer) message(status string, texts ...string) map[string]any {
	content := []any{}
	for _, text := range texts {
		content = append(content, outputText(text))
	}
	return map[string]any{"id": a.messageID(), "type": "message", "role": "assistant", "status": status, "content": content}
}

func outputText(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

// response is the response with its items. It has its usage once it has ended.
func (a *answer) response(status string, items ...any) map[string]any {
	o := map[string]any{
		"id": a.id, "object": "response", "created_at": time.Now().Unix(), "model": a.req.Model, "status": status,
		"output": append([]any{}, items...), "incomplete_details": nil, "usage": nil,
		"parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{},
	}
	if status == "in_progress" {
		return o
	}
	if a.limited {
		o["incomplete_details"] = map[string]string{"reason": "max_output_tokens"}
	}
	o["usage"] = map[string]any{
		"input_tokens": a.prompt, "input_tokens_details": map[string]int{"cached_tokens": a.cached},
		"output_tokens": len(a.words), "output_tokens_details": map[string]int{"reasoning_tokens": 0},
		"total_tokens": a.prompt + len(a.words),
	}
	return o
}
