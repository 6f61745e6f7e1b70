package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Chats describes a population of users who talk to a few applications. Each
// application has a system prompt of its own. A chat opens with a document or
// a long question; every turn repeats the whole text so far, the answers
// included, and adds a question.
type Chats struct {
	Apps          int     // applications; the k-th is used 1/k as often as the first
	SystemMin     int     // tokens of the shortest system prompt
	SystemMax     int     // tokens of the longest
	Opening       Length  // the first message of a chat
	Question      Length  // every later message
	Answer        Length  // every answer
	MoreTurns     float64 // chance that a turn is followed by another
	MaxTurns      int
	Pause         time.Duration // mean time between an answer and the next question
	AnswerRate    float64       // output tokens a second that users see, for the pace of a chat
	ChatsPerSec   float64       // mean rate at which chats begin
	Burst         float64       // times that rate in a burst; the calm between makes up for it
	BurstLength   time.Duration // mean
	BurstInterval time.Duration // mean, from the end of a burst to the next
}

// Length is a log-normal distribution of token counts.
type Length struct {
	Median float64
	Sigma  float64 // of the logarithm
	Max    int
}

// draw returns at least 1.
func (l Length) draw(rnd *rand.Rand) int {
	n := l.Median * math.Exp(l.Sigma*rnd.NormFloat64())
	return max(1, min(l.Max, int(n)))
}

// DefaultChats is the demo's population: long-context chats of the kind that
// production traces show (the Mooncake trace has 12,000 tokens a prompt), at a
// load that four default engines can bear under every policy.
func DefaultChats() Chats {
	return Chats{
		Apps: 8, SystemMin: 800, SystemMax: 4000,
		Opening:     Length{Median: 4000, Sigma: 0.8, Max: 32000},
		Question:    Length{Median: 150, Sigma: 0.8, Max: 2000},
		Answer:      Length{Median: 200, Sigma: 0.6, Max: 1000},
		MoreTurns:   0.8,
		MaxTurns:    12,
		Pause:       12 * time.Second,
		AnswerRate:  50,
		ChatsPerSec: 2.0,
		Burst:       2, BurstLength: 8 * time.Second, BurstInterval: 24 * time.Second,
	}
}

// Generate returns the first n requests of the population.
func (c Chats) Generate(seed uint64, n int) []Request {
	g := generator{Chats: c, seed: seed, rnd: rand.New(rand.NewPCG(seed, 0x5e1ec7))}
	g.system = make([][]uint32, c.Apps)
	for i := range g.system {
		length := c.SystemMin + g.rnd.IntN(c.SystemMax-c.SystemMin+1)
		g.system[i] = text(length, seed, systemText, uint64(i))
	}
	var all []Request
	at := time.Duration(0)
	// Chats begin in order of time. So once n requests lie before the newest beginning, no
	// later chat can come before them.
	for before := 0; before < n; before = countBefore(all, at) {
		at = g.nextChat(at)
		all = g.chat(all, at)
	}
	return first(n, all)
}

type generator struct {
	Chats
	seed   uint64
	rnd    *rand.Rand
	system [][]uint32
	chats  uint64

	inBurst bool
	change  time.Duration // when the burst, or the calm, ends
}

// chat appends all requests of one chat that begins at time at.
func (g *generator) chat(all []Request, at time.Duration) []Request {
	g.chats++
	key := g.chats << 8
	said := append([]uint32(nil), g.system[zipf(g.rnd, g.Apps)]...)
	r := Request{At: at, Session: fmt.Sprintf("chat-%d", g.chats)}
	for turn := 0; ; turn++ {
		message := g.Question
		if turn == 0 {
			message = g.Opening
		}
		said = append(said, text(message.draw(g.rnd), g.seed, userText, key+uint64(turn))...)
		answer := text(g.Answer.draw(g.rnd), g.seed, answerText, key+uint64(turn))
		r.Prompt, r.Output = said[:len(said):len(said)], answer
		all = append(all, r)
		said = append(said, answer...)
		if turn+1 == g.MaxTurns || g.rnd.Float64() >= g.MoreTurns {
			return all
		}
		answering := float64(len(answer)) / g.AnswerRate
		thinking := g.rnd.ExpFloat64() * g.Pause.Seconds()
		r.At += seconds(answering + thinking + minThinking)
		r.After, r.Pause = []int{len(all)}, seconds(thinking+minThinking)
	}
}

// minThinking is the shortest time in seconds between an answer and a question: no user asks
// before having read the answer. It also covers the time to the first token.
const minThinking = 3

// nextChat returns when the chat after one at time at begins. Chats begin in a Poisson process
// whose rate is higher in bursts.
func (g *generator) nextChat(at time.Duration) time.Duration {
	for {
		next := at + seconds(g.rnd.ExpFloat64()/g.rate())
		if next < g.change {
			return next
		}
		// The rate changes before: begin again there (the process has no memory).
		at = g.change
		mean := g.BurstInterval
		if g.inBurst = !g.inBurst; g.inBurst {
			mean = g.BurstLength
		}
		g.change = at + seconds(g.rnd.ExpFloat64()*mean.Seconds())
	}
}

// rate returns the current rate of new chats. The calm rate is such that the mean over bursts
// and calm is ChatsPerSec.
func (g *generator) rate() float64 {
	if g.inBurst {
		return g.ChatsPerSec * g.Burst
	}
	burst, calm := g.BurstLength.Seconds(), g.BurstInterval.Seconds()
	return g.ChatsPerSec * max(0.05, (burst+calm-g.Burst*burst)/calm)
}

func countBefore(requests []Request, at time.Duration) int {
	n := 0
	for _, r := range requests {
		if r.At <= at {
			n++
		}
	}
	return n
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
