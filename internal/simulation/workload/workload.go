// Package workload generates the requests of a player: from a seed, shaped like chats or
// agents, or from a trace file. The same arguments give the same requests.
package workload

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// Request is one prompt with its answer and arrival. Prompts may share memory and must not be
// changed.
type Request struct {
	ID     int           // from 1, in order of arrival
	At     time.Duration // model time since the start
	Prompt []uint32
	Output []uint32

	// Session is the chat or agent that the request belongs to, "": none; Parent is the one that has started it.
	Session, Parent string
	// After are the requests, by ID, that have to be answered before this one, and Pause is the time from the last
	// of these answers to this request: of a tool, or of a person. A player in a closed loop goes by these, so that
	// slow answers delay what follows; At is what they come to if answers take no longer than the population assumes.
	// None: it comes at At.
	After []int
	Pause time.Duration
}

// vocabulary is the number of different tokens (Llama 3: 128,256).
const vocabulary = 128_000

// Stream numbers separate texts of different origin; see text.
const (
	systemText = iota + 1
	userText
	answerText
	traceText
	traceAnswer
	toolText
	documentText
	agentText
)

// text returns n tokens that depend on nothing but the arguments (splitmix64).
// Equal arguments with a larger n give the same text, continued.
func text(n int, seed uint64, stream int, key uint64) []uint32 {
	state := mix(mix(seed) ^ mix(uint64(stream)<<56^key))
	tokens := make([]uint32, n)
	for i := range tokens {
		state += 0x9e3779b97f4a7c15
		tokens[i] = uint32(mix(state) % vocabulary)
	}
	return tokens
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// zipf draws a number below n, the k-th with a weight of 1/k.
func zipf(rnd *rand.Rand, n int) int {
	total := 0.0
	for k := range n {
		total += 1 / float64(k+1)
	}
	draw := rnd.Float64() * total
	for k := range n {
		if draw -= 1 / float64(k+1); draw < 0 {
			return k
		}
	}
	return n - 1
}

// first sorts requests by arrival, keeps n of them and numbers them. Until then After has places in the list, from 1.
func first(n int, requests []Request) []Request {
	for i := range requests {
		requests[i].ID = i + 1
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	requests = requests[:min(n, len(requests))]
	ids := make(map[int]int, len(requests))
	for i := range requests {
		ids[requests[i].ID] = i + 1
	}
	for i := range requests {
		r := &requests[i]
		r.ID = i + 1
		for k := range r.After {
			r.After[k] = ids[r.After[k]] // what comes before it is kept
		}
	}
	return requests
}

// Start lets sessions, and requests without one, begin anew: at random times with a mean rate of perSec. What follows in a
// session, and the sessions that it starts, move with it. It is for traces whose sessions all begin at once.
func Start(requests []Request, perSec float64, seed uint64) []Request {
	rnd := rand.New(rand.NewPCG(seed, 0x57a27))
	moved := make(map[int]time.Duration, len(requests))
	at := time.Duration(0)
	for i := range requests {
		r := &requests[i]
		if len(r.After) > 0 {
			moved[r.ID] = moved[r.After[0]]
		} else {
			at += time.Duration(rnd.ExpFloat64() / perSec * float64(time.Second))
			moved[r.ID] = at - r.At
		}
	}
	for i := range requests {
		requests[i].At += moved[requests[i].ID]
	}
	return first(len(requests), requests)
}

// Summary describes a workload.
type Summary struct {
	Requests     int
	Span         time.Duration // from the first arrival to the last
	PromptTokens int
	OutputTokens int
}

// Summarize returns the summary of requests.
func Summarize(requests []Request) Summary {
	s := Summary{Requests: len(requests)}
	for _, r := range requests {
		s.PromptTokens += len(r.Prompt)
		s.OutputTokens += len(r.Output)
	}
	if len(requests) > 0 {
		s.Span = requests[len(requests)-1].At - requests[0].At
	}
	return s
}
