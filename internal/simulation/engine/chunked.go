package engine

import "time"

// Bounds of one step: vLLM's defaults for a serving engine.
const (
	stepTokens   = 8192 // max_num_batched_tokens: one token of each answer, the rest prompt tokens
	stepRequests = 256  // max_num_seqs
)

// stepFixed is the time that a step takes whatever it computes.
const stepFixed = work(6 * time.Millisecond)

// stepTime returns the time of one step: stepFixed, 32 µs for each prompt token, 20 µs for each answer,
// 44 ns for each token of the answers' contexts, and 1.3 ns for each pair of a prompt token and a
// token before it. These are estimates for an 8B-class model on one 80 GB accelerator.
func stepTime(prompt int, pairs float64, answers, context int) work {
	return stepFixed + seconds(32e-6*float64(prompt)+1.3e-9*pairs+20e-6*float64(answers)+44e-9*float64(context))
}

// chunked computes in steps: one token of each answer, and prompt tokens in the
// order of arrival up to stepTokens in all.
type chunked struct {
	e       *Engine
	prefill []*prefill // admitted, prompt not computed yet, in order of arrival
	answers []*answer
	context int // tokens of the answers' prompts, and their own output except the last token of each
	running bool
	began   time.Duration
	whole   work // what the step takes
	end     work
}

type prefill struct {
	*job
	at    int // prompt tokens computed or cached
	chunk int // prompt tokens of the current step
}

// pairs is the number of pairs of a token of the chunk and a token before it.
func (p *prefill) pairs() float64 {
	return float64(p.chunk) * (float64(p.at) + float64(p.chunk)/2)
}

type answer struct {
	*job
	visible int // see Engine.visible
}

// begin starts a step, unless one runs or there is nothing to compute.
func (c *chunked) begin() []Update {
	e := c.e
	if c.running {
		return nil
	}
	c.began = e.now
	if len(c.prefill)+len(c.answers) == 0 {
		at, some := e.ready()
		if !some {
			return nil
		}
		c.began = at
	}
	ups := c.admit()
	if len(c.prefill)+len(c.answers) == 0 {
		return ups // all that has begun are transfers
	}
	prompt, pairs := c.chunks()
	c.whole = stepTime(prompt, pairs, len(c.answers), c.context)
	c.end = e.clock.workAt(c.began) + c.whole
	c.running = true
	return ups
}

// admit takes requests from the queue until their prompts fill the step.
func (c *chunked) admit() []Update {
	var ups []Update
	room := stepTokens - len(c.answers)
	for _, p := range c.prefill {
		room -= len(p.Prompt) - p.at
	}
	for room > 0 && len(c.prefill)+len(c.answers) < stepRequests {
		j, ok := c.e.admit(c.began)
		if !ok {
			break
		}
		ups = append(ups, Update{At: c.began, Events: c.e.cache.TakeEvents()})
		c.prefill = append(c.prefill, &prefill{job: j, at: j.known()})
		room -= len(j.Prompt) - j.known()
	}
	return ups
}

// chunks assigns the step's prompt tokens. It returns their number, and the sum over them of
// the tokens before each.
func (c *chunked) chunks() (tokens int, pairs float64) {
	room := stepTokens - len(c.answers)
	for _, p := range c.prefill {
		p.chunk = max(0, min(room, len(p.Prompt)-p.at))
		room -= p.chunk
		tokens += p.chunk
		pairs += p.pairs()
	}
	return tokens, pairs
}

func (c *chunked) fork(e *Engine, f forked) scheduler {
	copied := *c
	copied.e, copied.prefill, copied.answers = e, make([]*prefill, len(c.prefill)), make([]*answer, len(c.answers))
	for i, p := range c.prefill {
		copied.prefill[i] = &prefill{f.job(p.job), p.at, p.chunk}
	}
	for i, a := range c.answers {
		copied.answers[i] = &answer{f.job(a.job), a.visible}
	}
	return &copied
}

func (c *chunked) next() (work, bool) { return c.end, c.running }

func (c *chunked) step() []Update {
	c.running = false
	c.e.totals.Work += time.Duration(float64(c.e.now-c.began) * float64(c.whole-stepFixed) / float64(c.whole))
	c.charge()
	return append(c.decode(), c.advance()...)
}

// charge divides the time of the step: each request takes what it adds to it, and an equal part of what any step takes.
func (c *chunked) charge() {
	took, requests := float64(c.e.now-c.began), len(c.answers)
	for _, p := range c.prefill {
		if p.chunk > 0 {
			requests++
		}
	}
	any := stepTime(0, 0, 0, 0)
	part := func(of work) time.Duration {
		return time.Duration(took * (float64(of-any) + float64(any)/float64(requests)) / float64(c.whole))
	}
	for _, p := range c.prefill {
		if p.chunk > 0 {
			p.took += part(stepTime(p.chunk, p.pairs(), 0, 0))
		}
	}
	for _, a := range c.answers {
		a.took += part(stepTime(0, 0, 1, len(a.Prompt)+a.made-1))
	}
}

// decode gives each answer its token.
func (c *chunked) decode() []Update {
	var ups []Update
	going := c.answers[:0]
	for _, a := range c.answers {
		a.made++
		c.context++
		if a.made == a.visible {
			ups = append(ups, c.e.progress(a.job))
			a.visible = c.e.visible(a.job)
		}
		if a.made < len(a.Output) {
			going = append(going, a)
		} else {
			c.context -= len(a.Prompt) + a.made - 1
		}
	}
	clear(c.answers[len(going):])
	c.answers = going
	return ups
}

// advance advances prompts by their chunks. Those at their end get their first token.
func (c *chunked) advance() []Update {
	var ups []Update
	computed := false
	waiting := c.prefill[:0]
	for _, p := range c.prefill {
		computed = computed || p.chunk > 0
		if p.at += p.chunk; p.at < len(p.Prompt) {
			waiting = append(waiting, p)
			continue
		}
		ups = append(ups, c.e.firstToken(p.job))
		if len(p.Output) == 1 {
			ups = append(ups, c.e.progress(p.job))
			continue
		}
		c.answers = append(c.answers, &answer{job: p.job, visible: c.e.visible(p.job)})
		c.context += len(p.Prompt)
	}
	clear(c.prefill[len(waiting):])
	c.prefill = waiting
	if computed {
		c.e.totals.PrefillBusy += c.e.now - c.began
	}
	return ups
}

func (c *chunked) prefilling() int { return len(c.prefill) }
func (c *chunked) decoding() int   { return len(c.answers) }
