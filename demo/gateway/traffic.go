package main

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
	"strings"
	"sync"
	"time"
)

// traffic describes chats of users. Each chat begins with one of a few system prompts, and
// every turn, after some time, repeats the whole chat so far. Lengths are in tokens.
type traffic struct {
	Model            string
	Duration         time.Duration // time during which chats begin
	Rate             float64       // chats that begin per second
	Turns            int
	Think            time.Duration // mean time between an answer and the next question
	Prefixes         int
	Prefix           int
	Question, Answer int
	Seed             uint64
}

// result has the results of one or several rounds.
type result struct {
	ttft    []time.Duration // from the request to the first text of the answer
	prompt  int             // prompt tokens, as counted by the engines
	cached  int             // prompt tokens that were cached
	failed  int
	failure error // one of the failures
	cpu     []time.Duration
}

func (r *result) hitRate() float64 { return float64(r.cached) / float64(max(1, r.prompt)) }

// add adds another round.
func (r *result) add(o *result) {
	r.ttft = append(r.ttft, o.ttft...)
	r.prompt, r.cached, r.failed = r.prompt+o.prompt, r.cached+o.cached, r.failed+o.failed
	if o.failure != nil {
		r.failure = o.failure
	}
	if r.cpu == nil {
		r.cpu = make([]time.Duration, len(o.cpu))
	}
	for i, d := range o.cpu {
		r.cpu[i] += d
	}
}

// play plays all chats through a gateway. The same seed gives the same chats at the same times,
// apart from the delays of answers.
func (t *traffic) play(ctx context.Context, url string) (result, error) {
	rnd := rand.New(rand.NewPCG(t.Seed, 0))
	prefixes := make([]string, t.Prefixes)
	weights := make([]float64, t.Prefixes)
	for i := range prefixes {
		prefixes[i], weights[i] = words(rnd, t.Prefix), 1/float64(i+1)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 1024}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var (
		mu  sync.Mutex // guards sum
		sum result
		all sync.WaitGroup
	)
	begin := time.Now()
	for next := time.Duration(0); next < t.Duration && ctx.Err() == nil; next += exponential(rnd, time.Duration(float64(time.Second)/t.Rate)) {
		c := chat{traffic: t, client: client, url: url, rnd: rand.New(rand.NewPCG(t.Seed, rnd.Uint64()))}
		c.say("system", prefixes[draw(rnd, weights)])
		sleep(ctx, next-time.Since(begin))
		all.Go(func() {
			one := c.play(ctx)
			mu.Lock()
			defer mu.Unlock()
			sum.add(&one)
		})
	}
	all.Wait()
	return sum, ctx.Err()
}

// chat is one user's.
type chat struct {
	*traffic
	client   *http.Client
	url      string
	rnd      *rand.Rand
	messages []message
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (c *chat) say(role, text string) { c.messages = append(c.messages, message{role, text}) }

func (c *chat) play(ctx context.Context) (sum result) {
	for turn := range c.Turns {
		if turn > 0 {
			sleep(ctx, exponential(c.rnd, c.Think))
		}
		c.say("user", words(c.rnd, 1+int(c.rnd.ExpFloat64()*float64(c.Question))))
		one, err := c.turn(ctx)
		if err != nil {
			one = result{failed: 1, failure: err}
		}
		sum.add(&one)
		if err != nil || ctx.Err() != nil {
			break
		}
	}
	return sum
}

// turn sends the chat so far, and appends the answer to it.
func (c *chat) turn(ctx context.Context) (r result, err error) {
	body, err := json.Marshal(map[string]any{
		"model": c.Model, "messages": c.messages, "max_tokens": c.Answer,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return r, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Content-Type", "application/json")
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
	var answer strings.Builder
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			c.say("assistant", answer.String())
			return r, nil
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return r, err
		}
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content != "" {
			if r.ttft == nil {
				r.ttft = []time.Duration{time.Since(begin)}
			}
			answer.WriteString(e.Choices[0].Delta.Content)
		}
		if e.Usage != nil {
			r.prompt, r.cached = e.Usage.PromptTokens, e.Usage.Details.CachedTokens
		}
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("the answer breaks off: %w", err)
	}
	return r, errors.New("the answer ends without [DONE]")
}

// event has the members that are read of an event of a streamed answer.
type event struct {
	Choices []struct{ Delta struct{ Content string } }
	Usage   *struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      struct {
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
