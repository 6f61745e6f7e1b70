package openai

import (
	"bytes"
	"encoding/json"
	"strings"
)

// block is a part of a message of Anthropic's API.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  *string         `json:"thinking"`
	ID        string          `json:"id"`
	ToolUseID string          `json:"tool_use_id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	Content   json.RawMessage `json:"content"`
}

// billingHeader is the start of a part of the system prompt that differs with each request.
// vLLM leaves the part out of the prompt, and so does this conversion.
const billingHeader = "x-anthropic-billing-header"

// anthropicChat converts a request of Anthropic's API to a chat, as vLLM does.
func (r *Request) anthropicChat(b *object) ([][]byte, error) {
	var messages []chatMessage
	if !r.isNull(memberSystem) {
		text, blocks, err := content(r.raw(memberSystem))
		if err != nil {
			return nil, err
		}
		if text += systemText(blocks); text != "" {
			messages = append(messages, chatMessage{Role: "system", Content: text})
		}
	}
	var given []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if r.isNull(memberMessages) || json.Unmarshal(r.raw(memberMessages), &given) != nil {
		return nil, ErrNotConvertible
	}
	for _, m := range given {
		text, blocks, err := content(m.Content)
		if err != nil {
			return nil, err
		}
		if m.Role == "system" {
			if strings.HasPrefix(text, billingHeader) {
				continue
			}
			if text += systemText(blocks); text != "" {
				messages = append(messages, chatMessage{Role: "system", Content: text})
			}
			continue
		}
		if blocks == nil {
			messages = append(messages, chatMessage{Role: m.Role, Content: text})
			continue
		}
		if messages, err = appendBlocks(messages, m.Role, blocks); err != nil {
			return nil, err
		}
	}
	return r.finishAnthropic(b, messages)
}

// finishAnthropic adds the messages, and the tools and template arguments of the request.
func (r *Request) finishAnthropic(b *object, messages []chatMessage) ([][]byte, error) {
	tools, err := r.anthropicTools()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(messages)
	if err != nil {
		return nil, ErrNotConvertible
	}
	b.member("messages", text)
	if tools != nil {
		b.member("tools", tools)
	}
	effort, err := r.anthropicEffort()
	if err != nil {
		return nil, err
	}
	if err := r.templateArguments(b, effort); err != nil {
		return nil, err
	}
	return b.close(), nil
}

// anthropicEffort returns the reasoning effort that vLLM makes of a request, in JSON; nil: none.
// Thinking that is disabled is the effort "none", unless a model's template ignores that.
func (r *Request) anthropicEffort() ([]byte, error) {
	var thinking struct {
		Type string `json:"type"`
	}
	var output struct {
		Effort json.RawMessage `json:"effort"`
	}
	if !r.isNull(memberThinking) && json.Unmarshal(r.raw(memberThinking), &thinking) != nil ||
		!r.isNull(memberOutputConfig) && json.Unmarshal(r.raw(memberOutputConfig), &output) != nil {
		return nil, ErrNotConvertible
	}
	if thinking.Type == "disabled" {
		return []byte(`"none"`), nil
	}
	return output.Effort, nil
}

// givenTool is a tool in the form of Anthropic's API or of the responses API.
type givenTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"` // Anthropic's
	Parameters  json.RawMessage `json:"parameters"`   // of the responses API
	toolFlags
}

// tools returns the tools of a request, nil if it has none.
func (r *Request) tools() (given []givenTool, err error) {
	if r.isNull(memberTools) {
		return nil, nil
	}
	if json.Unmarshal(r.raw(memberTools), &given) != nil {
		return nil, ErrNotConvertible
	}
	return given, nil
}

func (r *Request) anthropicTools() ([]byte, error) {
	given, err := r.tools()
	if given == nil || err != nil {
		return nil, err
	}
	tools := make([]tool, len(given))
	for i, t := range given {
		tools[i] = tool{Type: "function", Function: toolFunction{t.Name, t.Description, t.InputSchema, t.toolFlags}}
	}
	return json.Marshal(tools)
}

// content reads the content of a message: a string, or blocks (then blocks is not nil).
func content(raw json.RawMessage) (text string, blocks []block, err error) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || raw[0] != '"' && raw[0] != '[':
		err = ErrNotConvertible
	case raw[0] == '"':
		err = json.Unmarshal(raw, &text)
	default:
		blocks = []block{}
		err = json.Unmarshal(raw, &blocks)
	}
	if err != nil {
		return "", nil, ErrNotConvertible
	}
	return text, blocks, nil
}

func systemText(blocks []block) string {
	var text strings.Builder
	for _, b := range blocks {
		if b.Type == "text" && !strings.HasPrefix(b.Text, billingHeader) {
			text.WriteString(b.Text)
		}
	}
	return text.String()
}

// appendBlocks appends the messages that one message of blocks becomes. The result of a tool
// becomes a message of its own, before the rest.
func appendBlocks(messages []chatMessage, role string, blocks []block) ([]chatMessage, error) {
	out := chatMessage{Role: role}
	var parts []textPart
	for _, b := range blocks {
		switch b.Type {
		case "text":
			if b.Text != "" {
				parts = append(parts, textPart{"text", b.Text})
			}
		case "thinking":
			if b.Thinking != nil {
				out.Reasoning += *b.Thinking
			}
		case "redacted_thinking", "tool_reference":
		case "tool_use":
			input := b.Input
			if len(input) == 0 || string(input) == "null" {
				input = json.RawMessage("{}")
			}
			out.ToolCalls = append(out.ToolCalls, toolCall{b.ID, "function", function{b.Name, string(input)}})
		case "tool_result":
			result, err := toolResult(role, b)
			if err != nil {
				return nil, err
			}
			messages = append(messages, result)
		default:
			return nil, ErrNotConvertible
		}
	}
	switch {
	case len(parts) == 1:
		out.Content = parts[0].Text
	case len(parts) > 1:
		out.Content = parts
	}
	if role == "user" && out.Content == nil {
		return messages, nil
	}
	return append(messages, out), nil
}

func toolResult(role string, b block) (chatMessage, error) {
	if role != "user" {
		return chatMessage{}, ErrNotConvertible
	}
	out := chatMessage{Role: "tool", ToolCallID: &b.ToolUseID}
	if len(b.Content) == 0 || string(b.Content) == "null" {
		out.Content = ""
		return out, nil
	}
	text, blocks, err := content(b.Content)
	if err != nil {
		return out, err
	}
	texts := make([]string, 0, len(blocks))
	for _, inner := range blocks {
		if inner.Type != "text" {
			return out, ErrNotConvertible
		}
		texts = append(texts, inner.Text)
	}
	out.Content = text + strings.Join(texts, "\n")
	return out, nil
}
