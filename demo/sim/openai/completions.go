package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/tokenizer"
)

// Lengths in tokens of answers to requests that do not limit them.
const (
	chatAnswer = 64
	textAnswer = 16
)

// request is the body of a chat or text completion.
type request interface {
	base() *common
	tokens() ([]uint32, error)
	length() int // of the answer, in tokens
}

// common has the members of both kinds.
type common struct {
	Model         string `json:"model"`
	MaxTokens     int    `json:"max_tokens"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	CacheSalt string          `json:"cache_salt"`
	Transfer  *transferParams `json:"kv_transfer_params,omitempty"`
	Hints     *kvHints        `json:"kv_hints,omitempty"`
}

func (c *common) base() *common { return c }

type chatRequest struct {
	common
	chat
	MaxCompletionTokens int `json:"max_completion_tokens"`
}

func (r *chatRequest) length() int { return firstSet(r.MaxCompletionTokens, r.MaxTokens, chatAnswer) }

type textRequest struct {
	common
	Prompt     json.RawMessage `json:"prompt"`
	AddSpecial *bool           `json:"add_special_tokens"`
}

func (r *textRequest) length() int { return firstSet(r.MaxTokens, textAnswer) }

func (r *textRequest) tokens() ([]uint32, error) {
	return promptTokens(r.Prompt, r.AddSpecial == nil || *r.AddSpecial)
}

func firstSet(values ...int) int {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}

func (s *Server) serveChat(w http.ResponseWriter, r *http.Request) {
	s.complete(w, r, new(chatRequest), form{
		id: "chatcmpl", object: "chat.completion", chunk: "chat.completion.chunk",
		whole: func(text string) map[string]any {
			return map[string]any{"message": map[string]string{"role": "assistant", "content": text}}
		},
		opening: map[string]any{"delta": map[string]string{"role": "assistant", "content": ""}},
		part:    func(text string) map[string]any { return map[string]any{"delta": map[string]string{"content": text}} },
	})
}

func (s *Server) serveCompletion(w http.ResponseWriter, r *http.Request) {
	text := func(text string) map[string]any { return map[string]any{"text": text} }
	s.complete(w, r, new(textRequest), form{id: "cmpl", object: "text_completion", chunk: "text_completion", whole: text, part: text})
}

// complete answers a request of either kind at the pace of the model.
func (s *Server) complete(w http.ResponseWriter, r *http.Request, req request, f form) {
	if !s.prefillElsewhere(w, r) || !decode(w, r, req) || !s.pass(w, r) {
		return
	}
	a, err := s.begin(r, req, f)
	switch {
	case err != nil:
		refuse(w, err)
	case req.base().Stream:
		a.stream(w, r)
	default:
		a.send(w, r)
	}
}

// begin submits a request to a rank.
func (s *Server) begin(r *http.Request, req request, f form) (*answer, error) {
	c := req.base()
	if err := s.allow(c); err != nil {
		return nil, err
	}
	adapter, err := s.adapter(c.Model)
	if err != nil {
		return nil, err
	}
	rank, err := s.rank(r)
	if err != nil {
		return nil, err
	}
	prompt, err := req.tokens()
	if err != nil {
		return nil, err
	}
	if n := req.length(); n < 0 || n > s.maxModelLen() {
		return nil, badRequest("max_tokens: %d is outside 1..%d", n, s.maxModelLen())
	}
	words, output := tokenizer.Answer(prompt, req.length())
	id := fmt.Sprintf("%s-%d", f.id, s.ids.Add(1))
	asked := simapi.GenerateRequest{
		RequestID: id, TokenIDs: prompt, OutputTokenIDs: output, LoRA: adapter, Salt: c.CacheSalt,
		Transfer: s.transfer(c.Transfer, len(prompt)),
	}
	if asked.Transfer == (simapi.Transfer{}) {
		asked.Transfer = s.fetch(r, c.Hints, rank, &asked)
	}
	steps, err := rank.Generate(asked)
	if err != nil {
		return nil, err // the request's fault: too long, or empty
	}
	return &answer{server: s, form: f, id: id, req: c, prompt: len(prompt), words: words, steps: steps}, nil
}

// form has the differences between the answers of the two kinds.
type form struct {
	id, object, chunk string
	whole             func(text string) map[string]any // a choice
	part              func(text string) map[string]any // a choice of an event
	opening           map[string]any                   // the choice of the first event, if it has no text
}

// answer is an answer that is being computed.
type answer struct {
	server *Server
	form   form
	id     string
	req    *common
	prompt int // tokens
	words  []string
	steps  <-chan simapi.Step
	cached int // prompt tokens that the cache had, once the first token has come
	// limited: the client's limit ends the message or response; else the model ends it by itself.
	limited bool
}

// next waits for the next tokens. ok is false after the last token. It is also false when the
// client has gone or the engine was restarted, which breaks the connection.
func (a *answer) next(r *http.Request) (tokens int, ok bool) {
	select {
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	case step, open := <-a.steps:
		switch {
		case !open:
			return 0, false
		case step.Event == simapi.EventError:
			panic(http.ErrAbortHandler)
		case step.Event == simapi.EventFirstToken:
			a.cached = step.CachedTokens
		}
		return step.OutputTokens, true
	}
}

// wait waits for all tokens.
func (a *answer) wait(r *http.Request) {
	for tokens, ok := a.next(r); ok; tokens, ok = a.next(r) {
		a.server.breaks(tokens)
	}
}

// send writes the answer when all tokens have come.
func (a *answer) send(w http.ResponseWriter, r *http.Request) {
	a.wait(r)
	choice := a.form.whole(strings.Join(a.words, ""))
	choice["index"], choice["finish_reason"], choice["logprobs"] = 0, "length", nil
	o := a.object(a.form.object, []any{choice}, a.usage())
	if t := a.req.Transfer; t != nil && t.RemoteDecode {
		o["kv_transfer_params"] = transferParams{RemotePrefill: true, RemoteDomain: a.server.opt.Pairing.Domain}
	}
	reply(w, http.StatusOK, o)
}

// stream sends an event for each token.
func (a *answer) stream(w http.ResponseWriter, r *http.Request) {
	all := a.each(w, r, func(i int) {
		if i == 0 && a.form.opening != nil {
			a.event(w, a.form.opening, nil)
		}
		var finish any
		if i == len(a.words)-1 {
			finish = "length"
		}
		a.event(w, a.form.part(a.words[i]), finish)
	})
	if !all {
		return
	}
	if a.req.StreamOptions.IncludeUsage {
		a.line(w, a.object(a.form.chunk, []any{}, a.usage()))
	}
	_, _ = fmt.Fprint(w, "data: [DONE]\n\n") // fails only if the client is gone, as all writes here
}

// each calls event for each token as the model computes it, and passes on what event has written.
// The model reports the first token and then whole blocks, so the tokens of a block come together.
// It returns false if the client has gone.
func (a *answer) each(w http.ResponseWriter, r *http.Request, event func(i int)) bool {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	flush := http.NewResponseController(w)
	if flush.Flush() != nil {
		return false
	}
	sent := 0
	for tokens, ok := a.next(r); ok; tokens, ok = a.next(r) {
		for ; sent < tokens; sent++ {
			event(sent)
			if f := a.server.faults.Load(); f.Reset {
				_ = flush.Flush() // the data before the fault must arrive
				a.server.breaks(sent + 1)
			}
		}
		if flush.Flush() != nil {
			return false
		}
	}
	return true
}

func (a *answer) event(w http.ResponseWriter, choice map[string]any, finish any) {
	choice["index"], choice["finish_reason"] = 0, finish
	a.line(w, a.object(a.form.chunk, []any{choice}, nil))
}

func (a *answer) line(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
}

func (a *answer) object(object string, choices []any, usage any) map[string]any {
	o := map[string]any{"id": a.id, "object": object, "created": time.Now().Unix(), "model": a.req.Model, "choices": choices}
	if usage != nil {
		o["usage"] = usage
	}
	return o
}

func (a *answer) usage() any {
	return map[string]any{
		"prompt_tokens": a.prompt, "completion_tokens": len(a.words), "total_tokens": a.prompt + len(a.words),
		"prompt_tokens_details": map[string]int{"cached_tokens": a.cached},
	}
}
