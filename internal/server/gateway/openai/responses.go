package openai

import "encoding/json"

// responsesChat converts the input of the responses API to a chat, as vLLM does. It supports
// messages of text and function calls with their results.
func (r *Request) responsesChat(b *object) ([][]byte, error) {
	var messages []chatMessage
	if !r.isNull(memberInstructions) {
		var text string
		if json.Unmarshal(r.raw(memberInstructions), &text) != nil {
			return nil, ErrNotConvertible
		}
		if text != "" {
			messages = append(messages, chatMessage{Role: "system", Content: text})
		}
	}
	if r.isNull(memberInput) {
		return nil, ErrNotConvertible
	}
	input := r.raw(memberInput)
	if input[0] == '"' {
		var text string
		if json.Unmarshal(input, &text) != nil {
			return nil, ErrNotConvertible
		}
		messages = append(messages, chatMessage{Role: "user", Content: text})
	} else {
		var items []item
		if json.Unmarshal(input, &items) != nil {
			return nil, ErrNotConvertible
		}
		if n := len(items); n > 0 && items[n-1].partial() {
			b.member("add_generation_prompt", []byte("false"))
			b.member("continue_final_message", []byte("true"))
		}
		var err error
		for _, it := range items {
			if messages, err = it.appendTo(messages); err != nil {
				return nil, err
			}
		}
	}
	text, err := json.Marshal(messages)
	if err != nil {
		return nil, ErrNotConvertible
	}
	b.member("messages", text)
	tools, err := r.responsesTools()
	if err != nil {
		return nil, err
	}
	if tools != nil {
		b.member("tools", tools)
	}
	r.addSpecial(b)
	var reasoning struct {
		Effort json.RawMessage `json:"effort"`
	}
	if !r.isNull(memberReasoning) && json.Unmarshal(r.raw(memberReasoning), &reasoning) != nil {
		return nil, ErrNotConvertible
	}
	if err := r.templateArguments(b, reasoning.Effort); err != nil {
		return nil, err
	}
	return b.close(), nil
}

// item is an item of the input of a response.
type item struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
	Summary   json.RawMessage `json:"summary"`
	Status    string          `json:"status"`
}

// partial reports whether the engine continues the item, if it is the last one.
func (it item) partial() bool {
	return (it.Type == "" || it.Type == "message" || it.Type == "reasoning") && (it.Status == "in_progress" || it.Status == "incomplete")
}

// appendTo appends the item as a message, or adds it to the assistant's message if that is the
// last one.
func (it item) appendTo(messages []chatMessage) ([]chatMessage, error) {
	last := &chatMessage{} // the assistant's last message, if it is the last of all
	if n := len(messages); n > 0 && messages[n-1].Role == assistant {
		last = &messages[n-1]
	}
	switch it.Type {
	case "", "message":
		text, blocks, err := content(it.Content)
		switch {
		case err != nil || it.Role == "" || it.Role == assistant && blocks != nil && len(blocks) != 1:
			return nil, ErrNotConvertible
		case it.Role != assistant && blocks != nil:
			parts := make([]textPart, len(blocks))
			for i, p := range blocks {
				parts[i] = textPart{"text", p.Text}
			}
			return append(messages, chatMessage{Role: it.Role, Content: parts}), nil
		case blocks != nil:
			text = blocks[0].Text
		}
		if it.Role == assistant && last.Role == assistant && last.Content == nil {
			last.Content = text
			return messages, nil
		}
		return append(messages, chatMessage{Role: it.Role, Content: text}), nil
	case "reasoning":
		text, err := it.reasoning()
		if err == nil && last.Role == assistant && last.Reasoning == "" {
			last.Reasoning = text
			return messages, nil
		}
		return append(messages, chatMessage{Role: assistant, Reasoning: text}), err
	case "function_call":
		if it.Namespace != "" {
			return nil, ErrNotConvertible
		}
		call := toolCall{it.CallID, "function", function{it.Name, it.Arguments}}
		if last.Role == assistant {
			last.ToolCalls = append(last.ToolCalls, call)
			return messages, nil
		}
		return append(messages, chatMessage{Role: assistant, ToolCalls: []toolCall{call}}), nil
	case "function_call_output":
		var text string
		if json.Unmarshal(it.Output, &text) != nil {
			return nil, ErrNotConvertible
		}
		return append(messages, chatMessage{Role: "tool", Content: text, ToolCallID: &it.CallID}), nil
	}
	return nil, ErrNotConvertible
}

const assistant = "assistant"

// reasoning returns the text of a reasoning item: the first part of its content, else of its
// summary.
func (it item) reasoning() (string, error) {
	for _, raw := range []json.RawMessage{it.Content, it.Summary} {
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		_, blocks, err := content(raw)
		if err != nil {
			return "", err
		}
		if len(blocks) > 0 {
			return blocks[0].Text, nil
		}
	}
	return "", ErrNotConvertible
}

func (r *Request) responsesTools() ([]byte, error) {
	given, err := r.tools()
	if given == nil || err != nil {
		return nil, err
	}
	tools := make([]tool, 0, len(given))
	for _, t := range given {
		if t.Type != "function" {
			return nil, ErrNotConvertible
		}
		tools = append(tools, tool{Type: "function", Function: toolFunction{t.Name, t.Description, t.Parameters, t.toolFlags}})
	}
	if len(tools) == 0 {
		return nil, nil
	}
	return json.Marshal(tools)
}
