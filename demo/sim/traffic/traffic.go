// Package traffic plays chats and agents through gateways that speak OpenAI's API, and measures
// their answers.
package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Traffic describes chats of users, or agents. Each begins with one of a few system prompts, and
// every turn, after some time, repeats all that was said. Lengths are in tokens.
type Traffic struct {
	Model            string
	Duration         time.Duration // time during which chats begin
	Rate             float64       // chats that begin per second
	Turns            int           // the most of a chat
	Think            time.Duration // mean time between an answer and the next question
	Prefixes         int           // system prompts; the k-th is used 1/k as often as the first
	Prefix           int
	Question, Answer int
	// Longest ends a chat whose prompt has reached so many tokens; 0: none.
	Longest int
	// Branch is the chance that after a turn sub-agents go on with what was said so far, two to
	// four at once, while the chat waits for them.
	Branch float64
	// Around is the share of chats that go to one of Engines, and not through a gateway. Nothing is
	// measured of them.
	Around  float64
	Engines []string // URLs
	// Session is the header that has a chat's id; "": none.
	Session string
	Seed    uint64
	// InTurn sends each request to the gateway after that of the request before it, and not to one
	// at random.
	InTurn bool
	// Transport carries the requests; nil: the network.
	Transport http.RoundTripper
}

// Request is what is measured of a request.
type Request struct {
	At   time.Duration // when it was sent, since the start
	TTFT time.Duration // from the request to the first text of the answer
	TPOT time.Duration // mean time per token after the first one; 0 for an answer of one token
}

// Result has the results of one or several rounds.
type Result struct {
	Requests []Request // those that were answered
	Prompt   int       // prompt tokens, as counted by the engines
	Cached   int       // prompt tokens that were cached
	Failed   int
	Failure  error // one of the failures
}

// HitRate returns the share of the prompt tokens that were cached.
func (r *Result) HitRate() float64 { return float64(r.Cached) / float64(max(1, r.Prompt)) }

// TTFT returns the times to first token in ms, in the order in which the chats have ended.
func (r *Result) TTFT() []float64 {
	ms := make([]float64, len(r.Requests))
	for i, q := range r.Requests {
		ms[i] = milliseconds(q.TTFT)
	}
	return ms
}

// TPOT returns the times per output token in ms, of the answers that have more than one.
func (r *Result) TPOT() (ms []float64) {
	for _, q := range r.Requests {
		if q.TPOT > 0 {
			ms = append(ms, milliseconds(q.TPOT))
		}
	}
	return ms
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Add adds another round.
func (r *Result) Add(o *Result) {
	r.Requests = append(r.Requests, o.Requests...)
	r.Prompt, r.Cached, r.Failed = r.Prompt+o.Prompt, r.Cached+o.Cached, r.Failed+o.Failed
	if o.Failure != nil {
		r.Failure = o.Failure
	}
}

// Play plays all chats through gateways, each request through one of them at random, or InTurn. The same
// seed gives the same chats at the same times, apart from the delays of answers.
func (t *Traffic) Play(ctx context.Context, gateways ...string) (Result, error) {
	rnd := rand.New(rand.NewPCG(t.Seed, 0))
	prefixes := make([]string, t.Prefixes)
	weights := make([]float64, t.Prefixes)
	for i := range prefixes {
		prefixes[i], weights[i] = words(rnd, t.Prefix), 1/float64(i+1)
	}
	transport := t.Transport
	if transport == nil {
		network := &http.Transport{MaxIdleConnsPerHost: 1024}
		defer network.CloseIdleConnections()
		transport = network
	}
	p := play{Traffic: t, client: &http.Client{Transport: transport}, begin: time.Now()}
	var (
		mu  sync.Mutex // guards sum
		sum Result
		all sync.WaitGroup
	)
	for next := time.Duration(0); next < t.Duration && ctx.Err() == nil; next += exponential(rnd, time.Duration(float64(time.Second)/t.Rate)) {
		c := chat{play: &p, to: gateways, rnd: rand.New(rand.NewPCG(t.Seed, rnd.Uint64()))}
		c.id = fmt.Sprintf("%016x", c.rnd.Uint64())
		c.say("system", prefixes[draw(rnd, weights)])
		around := c.rnd.Float64() < t.Around
		if around {
			c.to = []string{t.Engines[c.rnd.IntN(len(t.Engines))]}
		}
		sleep(ctx, next-time.Since(p.begin))
		all.Go(func() {
			one := c.run(ctx, t.Turns, true)
			mu.Lock()
			defer mu.Unlock()
			if !around {
				sum.Add(&one)
			}
		})
	}
	all.Wait()
	return sum, ctx.Err()
}

// play is what the chats of one play share.
type play struct {
	*Traffic
	client *http.Client
	begin  time.Time
	sent   atomic.Uint64 // requests that went to a gateway in turn
}

// chat is one user's, or one agent's.
type chat struct {
	*play
	to       []string // URLs, of which each request takes one
	id       string
	rnd      *rand.Rand
	messages []message
	prompt   int // tokens of the last request
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (c *chat) say(role, text string) { c.messages = append(c.messages, message{role, text}) }

// run plays the turns of a chat that are left.
func (c *chat) run(ctx context.Context, turns int, branches bool) (sum Result) {
	for turn := range turns {
		if turn > 0 {
			sleep(ctx, exponential(c.rnd, c.Think))
		}
		c.say("user", words(c.rnd, 1+int(c.rnd.ExpFloat64()*float64(c.Question))))
		one, err := c.turn(ctx)
		if err != nil {
			one = Result{Failed: 1, Failure: err}
		}
		sum.Add(&one)
		if err != nil || ctx.Err() != nil || c.Longest > 0 && c.prompt >= c.Longest {
			break
		}
		if branches && c.rnd.Float64() < c.Branch {
			below := c.branch(ctx)
			sum.Add(&below)
		}
	}
	return sum
}

// subTurns is how many turns a sub-agent has.
const subTurns = 3

// branch starts sub-agents on what was said so far, and waits for them.
func (c *chat) branch(ctx context.Context) (sum Result) {
	subs := make([]Result, 2+c.rnd.IntN(3))
	var all sync.WaitGroup
	for i := range subs {
		sub := *c
		sub.messages = slices.Clone(c.messages)
		sub.rnd = rand.New(rand.NewPCG(c.Seed, c.rnd.Uint64()))
		all.Go(func() { subs[i] = sub.run(ctx, subTurns, false) })
	}
	all.Wait()
	for i := range subs {
		sum.Add(&subs[i])
	}
	return sum
}

// gateway returns the URL to which the next request goes.
func (c *chat) gateway() string {
	at := c.rnd.IntN(len(c.to)) // drawn in turn, too: a seed gives the same chats
	if c.InTurn {
		at = int((c.sent.Add(1) - 1) % uint64(len(c.to)))
	}
	return c.to[at]
}

// turn sends the chat so far, and appends the answer to it.
func (c *chat) turn(ctx context.Context) (r Result, err error) {
	body, err := json.Marshal(map[string]any{
		"model": c.Model, "messages": c.messages, "max_tokens": c.Answer,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return r, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.gateway()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.Session != "" {
		req.Header.Set(c.Session, c.id)
	}
	begin := time.Now()
	resp, err := c.client.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // what came of it is shown
		return r, fmt.Errorf("%s with the body %q", resp.Status, text)
	}
	var (
		answer      strings.Builder
		first, last time.Time
		tokens      int
	)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			c.say("assistant", answer.String())
			q := Request{At: begin.Sub(c.begin), TTFT: first.Sub(begin)}
			if tokens > 1 {
				q.TPOT = last.Sub(first) / time.Duration(tokens-1)
			}
			r.Requests = []Request{q}
			return r, nil
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return r, err
		}
		if e.Error != nil { // a gateway's word that the engine broke off; [DONE] may follow
			return r, fmt.Errorf("the answer breaks off: %s", *e.Error)
		}
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content != "" {
			last = time.Now()
			if first.IsZero() {
				first = last
			}
			answer.WriteString(e.Choices[0].Delta.Content)
		}
		if e.Usage != nil {
			r.Prompt, r.Cached, tokens, c.prompt = e.Usage.PromptTokens, e.Usage.Details.CachedTokens, e.Usage.CompletionTokens, e.Usage.PromptTokens
		}
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("the answer breaks off: %w", err)
	}
	return r, errors.New("the answer ends without [DONE]")
}

// event has the members that are read of an event of a streamed answer.
type event struct {
	Error   *json.RawMessage
	Choices []struct{ Delta struct{ Content string } }
	Usage   *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// words returns a text of n words, which are one token each.
func words(rnd *rand.Rand, n int) string {
	text := make([]byte, 0, 5*n)
	for range n {
		w := rnd.Uint32()
		for range 4 {
			text = append(text, 'a'+byte(w%26))
			w /= 26
		}
		text = append(text, ' ')
	}
	return string(text[:max(0, len(text)-1)])
}

// draw draws an index by weights.
func draw(rnd *rand.Rand, weights []float64) int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	at := rnd.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// exponential draws an exponentially distributed duration.
func exponential(rnd *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(rnd.ExpFloat64() * float64(mean))
}
