package ttft

import "math"

// Parameters are the coefficients of the times of prefills and answers, for all ranks of a scope.
type Parameters struct {
	Base       float64 // seconds
	PerToken   float64 // seconds per token to compute, at least MinPerToken
	PerContext float64 // seconds per pair of a token to compute and a token that it attends to
	// PerAttended is the time by which each output token of each answer comes later for each token that the rank's answers attend
	// to, in seconds: k in the time b + k·context of an engine's step. 0: too little is known of answers.
	PerAttended float64
	Output      float64 // mean length of an answer in tokens; 0: it is not known
	// InStep is how much sooner than predicted half of the prefills end that begin as soon as their engine is ready for them, on an idle
	// rank or after another one, in seconds, from 0 to Base: Base includes the wait for the end of the step that runs when a prompt comes.
	InStep float64
	// Learned: the coefficients are learned; otherwise they are those of Default.
	Learned bool
	// Mature: enough samples are learned from to tell that a rank is stalled.
	Mature bool
}

// defaultRate is the assumed speed of a rank in tokens per second until it is learned.
const defaultRate = 12000

// MinPerToken keeps the time of a prefill rising with its tokens, whatever is learned.
const MinPerToken = 1e-6

// Default returns the parameters that hold until something is learned.
func Default() Parameters { return Parameters{PerToken: 1.0 / defaultRate} }

// Prefill returns the seconds that a rank of speed 1 takes to compute u tokens of a prompt
// of L tokens, whose other tokens are cached. u below 1 counts as 1.
func (p *Parameters) Prefill(u, prompt float64) float64 {
	u = max(u, 1)
	return p.Base + p.PerToken*u + p.PerContext*context(u, prompt)
}

// context returns the number of pairs of a token to compute and a token that it attends to.
func context(u, prompt float64) float64 { return u * (max(prompt, u) - u/2) }

// Queue is the unfinished work of one rank: what a new request would wait for, and which
// requests it would delay.
type Queue struct {
	Prefills uint32 // reservations whose prefill is tracked and not complete
	// Tokens is the sum over these of u, their tokens to compute; Context is the sum of
	// u·(L−u/2), because each token to compute attends to those before it.
	Tokens, Context float64
	// HeadTokens and HeadPrompt are u and L of the oldest of these prefills, in tokens;
	// Elapsed is the time in seconds since it could start.
	HeadTokens, HeadPrompt uint64
	Elapsed                float64
	Decoding               uint32  // requests whose prefill is complete
	Prompts                float64 // tokens of the prompts of all requests on the rank
	Speed                  float64 // m, the rank's time relative to its fleet's; 0 is read as 1
	// Late: callers report the end of this rank's prefills too late (see LateRank), so
	// that Elapsed and Speed are not used.
	Late bool
	// Ahead is the work of requests that are held for the rank, in seconds.
	Ahead float64
	// Foreign is the work of the rank's engine that is not booked and waits, in seconds.
	Foreign float64
	// Flow is the traffic to the rank.
	Flow Flow
}

// A rank is stalled if its oldest prefill takes longer than stallFactor times its
// prediction plus stallSlack seconds. The ratio of its time to that bound, at most
// maxStall, then multiplies the rank's predicted times, and the prefill is assumed to
// take another stallLeft of the time that it has taken so far.
const (
	stallFactor = 1.5
	stallSlack  = 0.05
	maxStall    = 20
	stallLeft   = 0.3
)

func (q *Queue) speed() float64 {
	if q.Speed == 0 || q.Late {
		return 1
	}
	return q.Speed
}

// Wait returns W, the seconds until the work of q is complete, and the factor of the
// rank's times if it is stalled, else 1.
func (p *Parameters) Wait(q *Queue) (wait, stall float64) {
	wait, stall = p.booked(q)
	return wait + q.Ahead + q.Foreign, stall
}

// Foreign returns the seconds that a rank of speed 1 takes for the prefills of n requests that
// have to compute the given number of tokens together, and nothing of which is cached.
func (p *Parameters) Foreign(n, tokens float64) float64 {
	if tokens == 0 {
		return n * p.Base
	}
	n = max(n, 1)
	return n * p.Prefill(tokens/n, tokens/n)
}

// booked is Wait for the reservations alone, without q.Ahead and q.Foreign.
func (p *Parameters) booked(q *Queue) (wait, stall float64) {
	if q.Prefills == 0 {
		return 0, 1
	}
	speed := q.speed()
	head := speed * p.Prefill(float64(q.HeadTokens), float64(q.HeadPrompt))
	all := speed * (float64(q.Prefills)*p.Base + p.PerToken*q.Tokens + p.PerContext*q.Context)
	others := max(0, all-head)
	if q.Prefills == 1 {
		others = 0 // exactly, without a rounding error
	}
	if q.Late {
		return head + others, 1
	}
	if usual := stallFactor*head + stallSlack; p.Mature && q.Elapsed > usual {
		stall = min(q.Elapsed/usual, maxStall)
		return stallLeft*q.Elapsed + others*stall, stall
	}
	return max(0, head-max(0, q.Elapsed)) + others, 1
}

// Flow is the traffic of a scope or of a rank, averaged over about 30 s.
type Flow struct {
	Arrivals float64 // λ, reservations per second
	Work     float64 // predicted seconds of prefill that arrive per second
}

// rate returns λ/(1−ρ) of the traffic of a rank: how many requests per second arrive while it is busy
// and are delayed, including those that arrive while it catches up.
func (f Flow) rate() float64 { return max(0, f.Arrivals) / (1 - min(max(0, f.Work), maxBusy)) }

// Delayed returns how many requests are delayed by work of so many seconds on a rank that has this traffic.
func (f Flow) Delayed(seconds float64) float64 { return seconds * f.rate() }

// maxBusy bounds ρ, the share of time in which a rank is busy: as ρ goes to 1 the delay
// of other requests would grow without limit.
const maxBusy = 0.8

// Crowding is how requests that arrive are delayed by the work of one rank.
type Crowding struct {
	// Rate is how many requests per second arrive at a busy rank and are delayed, if the traffic is
	// the same to all ranks.
	Rate float64
	// Long is the prefill, in seconds, beyond which requests that arrive go to other ranks. What
	// exceeds it delays those of all ranks by its n-th part. 0: there is none.
	Long  float64
	Ranks int
}

// longPrefill times the mean prefill of a request is Crowding.Long. Without a limit a prefix that
// many requests share, and that takes long, is copied to a second rank only when the first has a
// queue of many times that. With 4 the policy keeps chats together less well.
const longPrefill = 8

// Crowding returns the crowding of a scope of n ranks.
func (f Flow) Crowding(ranks int) Crowding {
	c := Crowding{Ranks: max(ranks, 1)}
	n := float64(c.Ranks)
	c.Rate = Flow{Arrivals: f.Arrivals / n, Work: f.Work / n}.rate()
	if f.Arrivals > 0 {
		c.Long = longPrefill * max(0, f.Work) / f.Arrivals
	}
	return c
}

// delay returns the delay of requests that arrive while the rank of q is busy with a prefill of x
// seconds, after it has waited. Λ is the mean of what arrives there lately and of what does on average:
// those that share the rank's cache come there, others go elsewhere while it is busy.
func (c Crowding) delay(q *Queue, wait, x float64) float64 {
	rate := (q.Flow.rate() + c.Rate) / 2
	if c.Long > 0 && x > c.Long {
		x = c.Long + (x-c.Long)/float64(c.Ranks)
	}
	return x * rate * (wait + x/2)
}

// decodeShare is the delay of a request that decodes on a rank, per second of prefill.
const decodeShare = 0.1

const (
	// answerWeight is what a second by which answers end later weighs beside one by which a first token comes later: a tenth, as in
	// decodeShare, because an answer is read while it comes.
	answerWeight = 0.1
	// answerSlack are the seconds by which answers end later, all together, that cost nothing. Prompts of some thousand tokens
	// cost less on every rank: there, to leave what is cached for a rank with fewer answers takes more from first tokens than it gives
	// to answers. Prompts of 100,000 tokens cost more on all ranks with several of them, so that the differences between these stay.
	answerSlack = 10.0
)

// Cost is what a request costs on a rank, in seconds.
type Cost struct {
	Wait    float64 // W, until its prefill can start
	Prefill float64 // x, its own
	Delay   float64 // of requests that arrive while the rank is busy with it
	Decode  float64 // delay of requests that decode on the rank
	// Answer is how much later its own answer ends because of the answers on the rank, and how much later these end because of its
	// prompt, weighted: answerWeight times the excess of Output · PerAttended · speed · (C + n·L) over answerSlack, where L is the
	// number of tokens of its prompt, n the number of requests on the rank and C the number of tokens of their prompts.
	Answer float64
	Speed  float64 // factor in Prefill: the learned speed, times the stall factor
}

// Total returns the cost that is compared. It is finite.
func (c *Cost) Total() float64 {
	return min(c.Wait+c.Prefill+c.Delay+c.Decode+c.Answer, math.MaxFloat64)
}

// Soonest returns the time to first token of a prompt with cost c on the rank of q, in seconds, if all goes well for it. It is at most
// the predicted time, c.Wait+c.Prefill. Engines that compute prompts in chunks compute it in one step with those that wait, so that Base
// passes once for all. They are taken to fit in one step if their tokens take less than their fixed parts. If they do not, or if the rank
// is idle, the prompt does not wait for the end of a step, see InStep; where there are only answers, it does.
func (p *Parameters) Soonest(c *Cost, q *Queue) float64 {
	fixed := p.Base * float64(q.Prefills)
	switch {
	case q.Prefills == 0 && q.Decoding > 0:
		return c.Wait + c.Prefill
	case q.Prefills > 0 && p.PerToken*q.Tokens+p.PerContext*q.Context <= fixed:
		return c.Prefill + max(0, c.Wait-c.Speed*fixed)
	}
	return c.Wait + max(0, c.Prefill-c.Speed*p.InStep)
}

// Cost returns the cost of computing u tokens of a prompt of L tokens on the rank of q.
func (p *Parameters) Cost(u, prompt float64, q *Queue, crowding Crowding) (c Cost) {
	var stall float64
	c.Wait, stall = p.Wait(q)
	c.Speed = q.speed() * stall
	c.Prefill = c.Speed * p.Prefill(u, prompt)
	c.Delay = crowding.delay(q, c.Wait, c.Prefill)
	c.Decode = decodeShare * c.Prefill * float64(q.Decoding)
	later := p.Output * p.PerAttended * q.speed() * (q.Prompts + prompt*(float64(q.Prefills)+float64(q.Decoding)))
	c.Answer = answerWeight * max(0, later-answerSlack)
	return c
}
