package tokenizer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/transport/http1"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Worker as Options.URL asks a live engine of the request's model.
const Worker = "worker"

// Protocol is the API of the server.
type Protocol string

// The protocols.
const (
	// VLLMRender is vLLM's …/render routes (since 0.18.0), which take the request's own body.
	VLLMRender Protocol = "vllm-render"
	// SGLangRenderer is SGLang's renderer, which has a route for chats only.
	SGLangRenderer Protocol = "sglang-renderer"
	// VLLMTokenize is the route /tokenize, which every vLLM has.
	VLLMTokenize Protocol = "vllm-tokenize"
)

// Options are a client's settings.
type Options struct {
	URL         string // base URL without a slash at its end, or Worker
	Protocol    Protocol
	Timeout     time.Duration // for a prompt's tokens, second tries included
	MaxResponse int64         // bytes of an answer
	// Engines is how engines are asked. The server at URL is connected to with their certificates, but
	// at whatever address, and without their token.
	Engines engines.Access
	// Memory is the account of answers above memory.SmallBody while they are read; nil: no
	// limit.
	Memory *memory.Account
}

// Client asks for tokens. It is safe for concurrent use.
type Client struct {
	options  Options
	http     *http1.Client
	breakers breakers
}

// New returns a client. Close closes its idle connections.
func New(o Options) *Client {
	through := http1.Options{TLS: o.Engines.TLS}
	if o.URL == Worker {
		through.Dial = o.Engines.Dial
	}
	return &Client{options: o, http: http1.New(through)}
}

// Close ends the connections that are not in use.
func (c *Client) Close() { c.http.Close() }

// Request is a prompt whose tokens are wanted.
type Request struct {
	*openai.Request
	Model string // the server's name of the model: an adapter's base model
	// Engines has the base URLs of the model's live engines, each once, from a random one on. It
	// is used if the URL is Worker.
	Engines iter.Seq[string]
	// ModelLength is the model's context length in tokens, for an answer that does not say it; 0:
	// unknown.
	ModelLength int
	// Reserve is called before memory is taken for the ids of an answer, with its bytes, and reports
	// whether there is room. The caller releases it once it does not need the ids any more. Nil: no limit.
	Reserve func(bytes int64) bool
}

// Prompt is a prompt in tokens, as the engine computes it.
type Prompt struct {
	IDs []uint32
	// ModelLength is the model's context length in tokens as the answer says it, else 0.
	ModelLength int
	// Whole: the engine shortens the prompt to the length of its model, but here it is not
	// shortened, since the length is unknown.
	Whole bool
}

// Placed is a prompt with what else decides about the blocks that it shares.
type Placed struct {
	Scope     catalog.Scope
	LoRA      string // name of the adapter; "": none
	CacheSalt string // under which its blocks are known; "": none
	Prompt
}

// Tokens returns the request's prompt, the first one in a batch. The error is an *Error, or
// ctx's if ctx ended.
func (c *Client) Tokens(ctx context.Context, r *Request) (Prompt, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.Timeout, errTimeout)
	defer cancel()
	got, err := c.put(ctx, r, false)
	if err != nil || c.options.Protocol != VLLMTokenize { // a renderer has shortened the prompt
		return Prompt{IDs: got.ids, ModelLength: got.modelLength}, err
	}
	return c.shorten(ctx, r, got)
}

// put asks a server for the request's tokens. plain is that of openai.Request.TokenizeBody.
func (c *Client) put(ctx context.Context, r *Request, plain bool) (answer, error) {
	call, err := c.call(r, plain)
	if err != nil {
		return answer{}, &Error{Reason: Unconvertible, Err: err}
	}
	if c.options.URL != Worker {
		return c.ask(ctx, c.options.URL, call)
	}
	return c.askEngines(ctx, r.Engines, call)
}

const (
	// maxAdded is how many tokens the template of a chat may add to a prompt: its default system prompt,
	// what it says of tools. Those of a message are fewer than the bytes of its JSON.
	maxAdded = 16 << 10
	// bytesPerToken bounds the text of an answer for each token that it may have: an id of ten digits
	// with what stands between ids, and the body's own text, which renderers repeat in part.
	bytesPerToken = 16
)

// mostIDs returns how many ids an answer for the request may have: a token has a byte of the body, or
// is the template's.
func (r *Request) mostIDs() int { return r.Size() + maxAdded }

// Renders reports whether the server is a renderer of the given protocol.
func (c *Client) Renders(p Protocol) bool { return c != nil && c.options.Protocol == p }

// askEngines asks the first engine whose breaker is closed, and a second one if that is
// unavailable: that failure is not the prompt's fault.
func (c *Client) askEngines(ctx context.Context, all iter.Seq[string], q call) (answer, error) {
	var last error = &Error{Reason: Unavailable, Err: errNoEngine}
	failed := false
	for engine := range all {
		got, err := c.ask(ctx, baseOf(engine), q)
		e, ok := errors.AsType[*Error](err)
		switch {
		case ok && e.Reason == Open:
			if !failed {
				last = err
			}
		case ok && e.Reason == Unavailable && !failed:
			last, failed = err, true
		default:
			return got, err
		}
	}
	return answer{}, last
}

// baseOf returns the base URL of an engine registered as a URL or as host:port.
func baseOf(engine string) string {
	if !strings.Contains(engine, "://") {
		engine = "http://" + engine
	}
	return strings.TrimRight(engine, "/")
}

// call is one question.
type call struct {
	of   *Request
	path string
	body [][]byte
	read func(text []byte, ids int) (answer, error) // ids: the most that the text can have
}

var errNoRoute = errors.New("the renderer has no route for this API")

// call returns the question for a request. The error is openai.ErrNotConvertible or errNoRoute.
func (c *Client) call(r *Request, plain bool) (call, error) {
	if c.options.Protocol == VLLMTokenize {
		body, err := r.TokenizeBody(r.Model, plain)
		return call{r, "/tokenize", body, answerWith("tokens")}, err
	}
	kind, body, err := r.RenderBody(r.Model)
	field := "token_ids"
	if c.options.Protocol == SGLangRenderer {
		if field = "input_ids"; kind != openai.Chat && err == nil {
			return call{}, errNoRoute
		}
	}
	path := map[openai.Kind]string{
		openai.Chat: "/v1/chat/completions/render", openai.Completions: "/v1/completions/render", openai.Responses: "/v1/responses/render",
	}[kind]
	return call{r, path, body, answerWith(field)}, err
}

// ask asks one server unless its breaker is open.
func (c *Client) ask(ctx context.Context, base string, q call) (answer, error) {
	trial, ok := c.breakers.allow(base, time.Now())
	if !ok {
		return answer{}, &Error{Reason: Open, Err: errOpen}
	}
	got, err := c.post(ctx, base+q.path, q)
	switch e, ok := errors.AsType[*Error](err); {
	case err == nil, ok && e.Reason.answered():
		c.breakers.succeeded(base)
	case ok:
		c.breakers.failed(base, time.Now())
	default: // the request was cancelled: no outcome for the server
		c.breakers.cancelled(base, trial)
	}
	return got, err
}

func (c *Client) post(ctx context.Context, at string, q call) (answer, error) {
	to, err := url.Parse(at)
	if err != nil {
		return answer{}, &Error{Reason: Broken, Err: err}
	}
	resp, err := c.http.Do(ctx, c.question(ctx, to, q.body))
	if err != nil {
		return answer{}, failed(ctx, fmt.Errorf("POST %s: %w", redact.URLs(to.String()), err), Unavailable)
	}
	defer func() { _ = resp.Close() }()
	if resp.Status != http.StatusOK {
		return answer{}, refused(ctx, to, resp)
	}
	text, free, err := c.text(resp, q.of)
	defer free()
	if err != nil {
		return answer{}, failed(ctx, err, Broken)
	}
	got, err := q.answer(text)
	if err != nil {
		return answer{}, failed(ctx, fmt.Errorf("answer of %s: %w", redact.URLs(to.String()), err), Broken)
	}
	return got, nil
}

// answer reads the ids of an answer. Their memory is reserved first: an id has a comma, but for the last.
func (c *call) answer(text []byte) (answer, error) {
	most := c.of.mostIDs()
	ids := bytes.Count(text, comma) + 1
	if ids > most+c.of.Size() { // what a renderer repeats of the body has commas too
		return answer{}, c.of.tooMany()
	}
	if c.of.Reserve != nil && !c.of.Reserve(bytesPerID*int64(ids)) {
		return answer{}, &Error{Reason: NoMemory, Err: errNoMemory}
	}
	got, err := c.read(text, ids)
	switch {
	case err != nil:
		return answer{}, err
	case len(got.ids) > most:
		return answer{}, c.of.tooMany()
	}
	return got, nil
}

// tooMany returns the error of an answer with more ids than the prompt can have. That is the server's
// fault, unless the client's own template or normalization may have made them.
func (r *Request) tooMany() error {
	if r.MayGrow() {
		return &Error{Reason: TooLarge, Err: errTooMany}
	}
	return &Error{Reason: Broken, Err: errTooMany}
}

var (
	errTooLarge = errors.New("the answer is longer than the limit")
	errTooMany  = errors.New("the answer has more tokens than the prompt can have")
	errNoMemory = errors.New("no memory for the answer")
	comma       = []byte{','}
)

// text reads the body of an answer for a request. The caller must call free once, also after an error.
func (c *Client) text(resp io.Reader, of *Request) (text []byte, free func(), err error) {
	most, tooLong := c.options.MaxResponse, error(&Error{Reason: TooLarge, Err: errTooLarge})
	if n := bytesPerToken*int64(of.mostIDs()) + memory.SmallBody; n < most {
		most, tooLong = n, of.tooMany()
	}
	held := memory.NewBuffer(memory.SmallBody) // nearly all answers fit
	free = func() { held.Release(c.options.Memory) }
	buf, n := held.Bytes[:memory.SmallBody], 0
	for {
		if n == len(buf) {
			grown := min(2*int64(n), most+1) // one byte more, to notice a longer answer
			if !c.options.Memory.Reserve(grown) {
				return nil, free, &Error{Reason: NoMemory, Err: errNoMemory}
			}
			former := held
			held = memory.NewBuffer(int(grown))
			held.Reserved = grown
			buf = append(held.Bytes, buf...)[:grown]
			former.Release(c.options.Memory)
		}
		m, err := resp.Read(buf[n:])
		n += m
		switch {
		case int64(n) > most:
			return nil, free, tooLong
		case err == io.EOF:
			return buf[:n], free, nil
		case err != nil:
			return nil, free, err
		}
	}
}
