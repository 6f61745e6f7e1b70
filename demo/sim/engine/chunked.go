package engine

import "time"

// Bounds of one step: vLLM's defaults for a serving engine.
const (
	stepTokens   = 8192 // max_num_batched_tokens: one token of each answer, the rest prompt tokens
	stepRequests = 256  // max_num_seqs
)

// stepTime returns the time of one step: 6 ms, 32 µs for each prompt token, 20 µs for each answer,
// 44 ns for each token of the answers' contexts, and 1.3 ns for each pair of a prompt token and a
// token before it. These are estimates for an 8B-class model on one 80 GB accelerator.
func stepTime(prompt int, pairs float64, answers, context int) work {
	return seconds(6e-3 + 32e-6*float64(prompt) + 1.3e-9*pairs + 20e-6*float64(answers) + 44e-9*float64(context))
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
	end     work
}

type prefill struct {
	*job
	at    int // prompt tokens computed or cached
	chunk int // prompt tokens of the current step
}

type answer struct {
	*job
	visible int // see Engine.visible
}

// begin starts a step, unless one runs or there is nothing to compute.
func (s *chunked) begin() []Update {
	e := s.e
	if s.running {
		return nil
	}
	s.began = e.now
	if len(s.prefill)+len(s.answers) == 0 {
		if len(e.queue) == 0 {
			return nil
		}
		s.began = max(e.now, e.queue[0].arrived)
	}
	ups := s.admit()
	prompt, pairs := s.chunks()
	s.end = e.clock.workAt(s.began) + stepTime(prompt, pairs, len(s.answers), s.context)
	s.running = true
	return ups
}

// admit takes requests from the queue until their prompts fill the step.
func (s *chunked) admit() []Update {
	var ups []Update
	room := stepTokens - len(s.answers)
	for _, p := range s.prefill {
		room -= len(p.Prompt) - p.at
	}
	for room > 0 && len(s.prefill)+len(s.answers) < stepRequests {
		j, ok := s.e.admit(s.began)
		if !ok {
			break
		}
		ups = append(ups, Update{At: s.began, Events: s.e.cache.TakeEvents()})
		s.prefill = append(s.prefill, &prefill{job: j, at: j.cached})
		room -= len(j.Prompt) - j.cached
	}
	return ups
}

// chunks assigns the step's prompt tokens. It returns their number, and the sum over them of
// the tokens before each.
func (s *chunked) chunks() (tokens int, pairs float64) {
	room := stepTokens - len(s.answers)
	for _, p := range s.prefill {
		p.chunk = max(0, min(room, len(p.Prompt)-p.at))
		room -= p.chunk
		tokens += p.chunk
		pairs += float64(p.chunk) * (float64(p.at) + float64(p.chunk)/2)
	}
	return tokens, pairs
}

func (s *chunked) next() (work, bool) { return s.end, s.running }

func (s *chunked) step() []Update {
	s.running = false
	return append(s.decode(), s.advance()...)
}

// decode gives each answer its token.
func (s *chunked) decode() []Update {
	var ups []Update
	going := s.answers[:0]
	for _, a := range s.answers {
		a.made++
		s.context++
		if a.made == a.visible {
			ups = append(ups, s.e.progress(a.job))
			a.visible = s.e.visible(a.job)
		}
		if a.made < len(a.Output) {
			going = append(going, a)
		} else {
			s.context -= len(a.Prompt) + a.made - 1
		}
	}
	clear(s.answers[len(going):])
	s.answers = going
	return ups
}

// advance advances prompts by their chunks. Those at their end get their first token.
func (s *chunked) advance() []Update {
	var ups []Update
	computed := false
	waiting := s.prefill[:0]
	for _, p := range s.prefill {
		computed = computed || p.chunk > 0
		if p.at += p.chunk; p.at < len(p.Prompt) {
			waiting = append(waiting, p)
			continue
		}
		ups = append(ups, s.e.firstToken(p.job))
		if len(p.Output) == 1 {
			ups = append(ups, s.e.progress(p.job))
			continue
		}
		s.answers = append(s.answers, &answer{job: p.job, visible: s.e.visible(p.job)})
		s.context += len(p.Prompt)
	}
	clear(s.prefill[len(waiting):])
	s.prefill = waiting
	if computed {
		s.e.totals.PrefillBusy += s.e.now - s.began
	}
	return ups
}

func (s *chunked) prefilling() int { return len(s.prefill) }
func (s *chunked) decoding() int   { return len(s.answers) }
