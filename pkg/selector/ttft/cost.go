package ttft

import "math"

// Parameters are the coefficients of the time of a prefill, for all ranks of a scope.
type Parameters struct {
	Base       float64 // seconds
	PerToken   float64 // seconds per token to compute, at least MinPerToken
	PerContext float64 // seconds per token to compute and token that it attends to
	// Learned: the coefficients are learned; else they are those of Default.
	Learned bool
	// Mature: enough is learned to tell that a rank is stalled.
	Mature bool
}

// defaultRate is how many tokens per second a rank computes as long as nothing is known.
const defaultRate = 12000

// MinPerToken keeps the time of a prefill rising with its tokens, whatever is learned.
const MinPerToken = 1e-6

// Default returns the parameters as long as nothing is learned.
func Default() Parameters { return Parameters{PerToken: 1.0 / defaultRate} }

// Prefill returns the seconds that a rank of speed 1 takes for u tokens of a prompt of L
// tokens, of which the others are cached. u is at least 1.
func (p *Parameters) Prefill(u, prompt float64) float64 {
	u = max(u, 1)
	return p.Base + p.PerToken*u + p.PerContext*context(u, prompt)
}

// context is how many pairs of a token to compute and one that it attends to there are.
func context(u, prompt float64) float64 { return u * (max(prompt, u) - u/2) }

// Queue is the work on one rank that is not finished: what a new request would wait
// for, and whom it would hold up.
type Queue struct {
	Prefills uint32 // bookings whose prefill is tracked and not complete
	// Tokens is the sum of their tokens to compute, Σu, and Context that of u·(L−u/2): each of
	// the tokens to compute attends to those before it.
	Tokens, Context float64
	// HeadTokens and HeadPrompt are u and L of the oldest of them; Elapsed is the time in
	// seconds since it could start.
	HeadTokens, HeadPrompt uint64
	Elapsed                float64
	Decoding               uint32  // requests whose prefill is complete
	Speed                  float64 // m, the rank's time relative to its fleet's; 0 is read as 1
	// Late: callers report the end of prefills too late here (see LateRank), so that
	// neither Elapsed nor Speed means anything.
	Late bool
	// Ahead, in seconds, is the work of requests that are held for the rank.
	Ahead float64
}

// A rank is stalled if its oldest prefill takes longer than stallFactor times its
// prediction and stallSlack seconds. The ratio to that, at most maxStall, multiplies the
// rank's times, and the prefill is taken to need stallLeft of the time that it has taken.
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

// Wait returns the seconds until the prefills of q are complete, W, and by what the
// times of the rank are multiplied because it is stalled, 1 if it is not.
func (p *Parameters) Wait(q *Queue) (wait, stall float64) {
	wait, stall = p.booked(q)
	return wait + q.Ahead, stall
}

// booked is Wait for what is booked.
func (p *Parameters) booked(q *Queue) (wait, stall float64) {
	if q.Prefills == 0 {
		return 0, 1
	}
	speed := q.speed()
	head := speed * p.Prefill(float64(q.HeadTokens), float64(q.HeadPrompt))
	all := speed * (float64(q.Prefills)*p.Base + p.PerToken*q.Tokens + p.PerContext*q.Context)
	others := max(0, all-head)
	if q.Prefills == 1 {
		others = 0 // not what rounding leaves
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

// Flow is what comes to a scope, averaged over about 30 s.
type Flow struct {
	Arrivals float64 // λ, bookings per second
	Work     float64 // predicted seconds of their prefills per second
}

// maxBusy bounds ρ: beyond it the delay of others would grow without limit.
const maxBusy = 0.8

// Crowding returns Λ of a scope of n ranks: how many requests per second are held up on
// a rank that is busy, those included that come while it is busy for that reason.
func (f Flow) Crowding(ranks int) float64 {
	n := float64(max(ranks, 1))
	busy := min(max(0, f.Work)/n, maxBusy)
	return max(0, f.Arrivals) / n / (1 - busy)
}

// decodeShare is the delay of a request that decodes on a rank, per second of prefill.
const decodeShare = 0.1

// Cost is what a request costs on a rank, in seconds.
type Cost struct {
	Wait    float64 // W, until its prefill can start
	Prefill float64 // x, its own
	Delay   float64 // of those that come while the rank is busy
	Decode  float64 // of those that decode on the rank
	Speed   float64 // by which Prefill is multiplied: learned, and more if the rank is stalled
}

// Total is the cost that is compared. It is finite.
func (c *Cost) Total() float64 {
	return min(c.Wait+c.Prefill+c.Delay+c.Decode, math.MaxFloat64)
}

// Cost returns what u tokens of a prompt of L tokens cost on the rank of q. crowding is
// that of the scope's Flow.
func (p *Parameters) Cost(u, prompt float64, q *Queue, crowding float64) (c Cost) {
	var stall float64
	c.Wait, stall = p.Wait(q)
	c.Speed = q.speed() * stall
	c.Prefill = c.Speed * p.Prefill(u, prompt)
	c.Delay = c.Prefill * crowding * (c.Wait + c.Prefill/2)
	c.Decode = decodeShare * c.Prefill * float64(q.Decoding)
	return c
}
