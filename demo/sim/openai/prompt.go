package openai

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/select-service/select-service/demo/sim/tokenizer"
)

// chat has the members that determine a prompt in the bodies of /v1/chat/completions and
// /tokenize.
type chat struct {
	Messages            []message       `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"` // true
	ContinueFinal       bool            `json:"continue_final_message"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"` // text, or a list of parts of which those of text count
}

func (c *chat) tokens() ([]uint32, error) {
	if len(c.Messages) == 0 {
		return nil, badRequest("messages: at least one is needed")
	}
	messages := make([]tokenizer.Message, len(c.Messages))
	for i, m := range c.Messages {
		text, err := m.text()
		if err != nil {
			return nil, badRequest("messages[%d].content: %v", i, err)
		}
		messages[i] = tokenizer.Message{Role: m.Role, Content: text}
	}
	t := tokenizer.Template{Continue: c.ContinueFinal, Open: c.AddGenerationPrompt == nil || *c.AddGenerationPrompt}
	if isSet(c.Tools) {
		t.Tools = toolText(c.Tools)
	}
	return tokenizer.Chat(messages, t), nil
}

// toolText is what the template shows of tools: name, description and parameters of each function,
// whichever members and spaces the client has sent beside them.
func toolText(tools json.RawMessage) string {
	var functions []struct {
		Function struct {
			Name        string `json:"name"`
			Description string `json:"description"`
			Parameters  any    `json:"parameters"`
		} `json:"function"`
	}
	if json.Unmarshal(tools, &functions) != nil {
		return string(tools)
	}
	text, err := json.Marshal(functions)
	if err != nil {
		panic(err) // it was JSON before
	}
	return string(text)
}

func (m *message) text() (string, error) {
	if !isSet(m.Content) {
		return "", nil
	}
	var text string
	if m.Content[0] == '"' {
		return text, json.Unmarshal(m.Content, &text)
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", err
	}
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Text)
	}
	return all.String(), nil
}

func isSet(value json.RawMessage) bool { return len(value) > 0 && string(value) != "null" }

// promptTokens reads the prompt of a text completion: a text or a list of tokens, or a
// list of one of these.
func promptTokens(prompt json.RawMessage, special bool) ([]uint32, error) {
	var (
		text   string
		tokens []uint32
		texts  []string
		lists  [][]uint32
	)
	switch {
	case json.Unmarshal(prompt, &text) == nil:
		return tokenizer.Encode(text, special), nil
	case json.Unmarshal(prompt, &tokens) == nil:
		return tokens, nil
	case json.Unmarshal(prompt, &texts) == nil && len(texts) == 1:
		return tokenizer.Encode(texts[0], special), nil
	case json.Unmarshal(prompt, &lists) == nil && len(lists) == 1:
		return lists[0], nil
	}
	return nil, badRequest("prompt: neither one text nor one list of tokens")
}

// serveTokenize is vLLM's /tokenize, for a text or a chat.
func (s *Server) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		chat
		Model      string          `json:"model"`
		Prompt     json.RawMessage `json:"prompt"`
		AddSpecial *bool           `json:"add_special_tokens"` // true for a text, false for a chat, which brings its own
		Strings    bool            `json:"return_token_strs"`
	}
	if !decode(w, r, &req) {
		return
	}
	tokens, strs, err := []uint32(nil), []string(nil), error(nil)
	if _, err = s.adapter(req.Model); err == nil {
		if isSet(req.Prompt) {
			special := req.AddSpecial == nil || *req.AddSpecial
			tokens, err = promptTokens(req.Prompt, special)
			strs = textOf(req.Prompt, special)
		} else {
			tokens, err = req.tokens()
		}
	}
	if err != nil {
		refuse(w, err)
		return
	}
	answer := map[string]any{"count": len(tokens), "max_model_len": s.maxModelLen(), "tokens": tokens, "token_strs": nil}
	if req.Strings {
		answer["token_strs"] = strs
	}
	reply(w, http.StatusOK, answer)
}

// textOf returns the texts of the tokens of a prompt given as text, otherwise nil.
func textOf(prompt json.RawMessage, special bool) (pieces []string) {
	var text string
	if json.Unmarshal(prompt, &text) != nil {
		return nil
	}
	if special {
		pieces = append(pieces, "<s>")
	}
	return append(pieces, tokenizer.Pieces(text)...)
}

// rendered is the answer of vLLM's render routes, as far as it is simulated: the tokens.
type rendered struct {
	Tokens []uint32 `json:"token_ids"`
	Model  string   `json:"model"`
	Stream bool     `json:"stream"`
}

func (s *Server) serveRenderChat(w http.ResponseWriter, r *http.Request) {
	s.render(w, r, new(chatRequest), func(one rendered) any { return one })
}

func (s *Server) serveRenderCompletion(w http.ResponseWriter, r *http.Request) {
	s.render(w, r, new(textRequest), func(one rendered) any { return []rendered{one} })
}

func (s *Server) render(w http.ResponseWriter, r *http.Request, req request, form func(rendered) any) {
	if !decode(w, r, req) {
		return
	}
	base := req.base()
	_, err := s.adapter(base.Model)
	var tokens []uint32
	if err == nil {
		tokens, err = req.tokens()
	}
	if err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusOK, form(rendered{Tokens: tokens, Model: base.Model, Stream: base.Stream}))
}
