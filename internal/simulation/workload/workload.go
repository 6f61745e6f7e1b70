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

// first sorts requests by arrival, keeps n of them and numbers them.
func first(n int, requests []Request) []Request {
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	requests = requests[:min(n, len(requests))]
	for i := range requests {
		requests[i].ID = i + 1
	}
	return requests
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
