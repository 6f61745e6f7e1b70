package main

import (
	"strconv"
	"time"

	"github.com/select-service/select-service/demo/sim/traffic"
)

// play is one load on one fleet.
type play struct {
	name, about string
	engines     int
	prefill     float64 // prompt tokens that an engine computes a second; 0: engines take no time
	decode      float64 // output tokens a second of each request; 0: 50, or no time if prefill is 0
	cacheBlocks int     // of 16 tokens, of an engine
	speed       float64 // of the first engine, as a factor; 0: 1
	eachToken   bool    // engines stream token by token, not block by block
	chunked     bool    // engines compute prompts in chunks beside their answers; prefill does not apply
	gateways    int     // side by side; 0: 1
	restart     bool    // the first engine is killed in the middle, and started again after restartAfter
	short       bool    // part of --short
	traffic     traffic.Traffic
}

const (
	blockSize     = 16
	model         = "simulated"
	restartAfter  = 3 * time.Second
	shortDuration = 5 * time.Second
)

// chats are users' chats: what make demo-gateway plays, with five turns.
func chats(rate float64) traffic.Traffic {
	return traffic.Traffic{
		Model: model, Duration: 30 * time.Second, Rate: rate, Turns: 5, Think: time.Second,
		Prefixes: 8, Prefix: 1000, Question: 800, Answer: 60, Seed: 1,
	}
}

// timeless are single requests that show what a gateway adds.
func timeless(rate float64, answer int) traffic.Traffic {
	return traffic.Traffic{
		Model: model, Duration: 20 * time.Second, Rate: rate, Turns: 1, Prefixes: 50, Prefix: 500, Question: 500, Answer: answer, Seed: 1,
	}
}

// chatRate is how many chats a second load engines by a share of their capacity: that of a fleet
// which computes every token once. A turn adds its question, on average half a block of the answer
// before it and the marks of its messages.
func chatRate(share float64, engines int, prefill float64) float64 {
	const turns, question, rest = 5, 800, blockSize/2 + 4
	return share * float64(engines) * prefill / (turns * (question + rest))
}

// agents are programs with tools: contexts begin with 8,000 tokens of instructions, grow by 2,500
// tokens with each step up to 60,000, and sub-agents branch off every tenth step.
func agents(rate float64) traffic.Traffic {
	return traffic.Traffic{
		Model: model, Duration: 45 * time.Second, Rate: rate, Turns: 25, Think: time.Second,
		Prefixes: 5, Prefix: 8000, Question: 2500, Answer: 50, Longest: 60_000, Branch: 0.1, Seed: 1,
	}
}

// with returns a play with a change.
func (p play) with(change func(*play)) play {
	change(&p)
	return p
}

// The fleets: two engines as fast as the demo's, eight and 32 that are slower, so that one machine
// can feed them.
func chatsOn(name, about string, share float64, engines int) play {
	prefill := map[int]float64{2: 12_000, 8: 4_000, 32: 1_000}[engines]
	return play{
		name: name, about: about + ", " + strconv.Itoa(engines) + " engines of " + strconv.Itoa(int(prefill)) + " tokens a second",
		engines: engines, prefill: prefill, cacheBlocks: 16_384, traffic: chats(chatRate(share, engines, prefill)),
	}
}

var plays = []play{
	chatsOn("two-25", "chats at 25 % of the engines' capacity", 0.25, 2).with(func(p *play) { p.short = true }),
	chatsOn("two-75", "chats at 75 %", 0.75, 2),
	chatsOn("eight-50", "chats at 50 %", 0.5, 8),
	chatsOn("eight-75", "chats at 75 %", 0.75, 8),
	chatsOn("eight-90", "chats at 90 %", 0.9, 8),
	chatsOn("many-75", "chats at 75 %", 0.75, 32),
	{
		name: "agents", about: "agents with tools and sub-agents, contexts up to 60,000 tokens, 8 engines of 4,000 tokens a second",
		engines: 8, prefill: 4_000, cacheBlocks: 16_384, traffic: agents(0.35),
	},
	chatsOn("small-caches", "chats at 35 % with eleven seconds of thought, caches of a quarter of the working set", 0.35, 8).with(func(p *play) {
		t := &p.traffic
		t.Think, t.Answer, t.Duration = 11*time.Second, 30, 40*time.Second
		// A chat lives for some 55 s and has 3,500 tokens on average; the prompts of eight applications.
		p.cacheBlocks = int(t.Rate*55*3500+8*1000) / blockSize / p.engines / 4
	}),
	chatsOn("half-speed", "chats at 75 %, the first engine at half its speed", 0.75, 8).with(func(p *play) {
		p.speed = 0.5
		p.traffic.Rate *= 7.5 / 8
	}),
	chatsOn("restart", "chats at 50 %, the first engine killed in the middle and started again 3 s later", 0.5, 8).with(func(p *play) {
		p.restart = true
	}),
	chatsOn("two-gateways", "chats at 75 %, two gateways side by side", 0.75, 8).with(func(p *play) { p.gateways = 2 }),
	chatsOn("around", "chats at 75 %, a third of them sent to the engines directly", 0.75, 8).with(func(p *play) { p.traffic.Around = 1.0 / 3 }),
	{
		name: "tenants", about: "system prompts of 20,000 tokens of four tenants, of which one has half of the load, 8 engines of 4,000 tokens a second",
		engines: 8, prefill: 4_000, cacheBlocks: 16_384,
		traffic: func() traffic.Traffic {
			t := chats(chatRate(0.5, 8, 4_000))
			t.Prefixes, t.Prefix, t.Duration = 4, 20_000, 60*time.Second // each engine takes 5 s for the first of a tenant
			return t
		}(),
	},
	{
		name: "chunked", about: "chats on two engines that compute prompts in chunks beside their answers",
		engines: 2, prefill: 12_000, cacheBlocks: 16_384, chunked: true, traffic: chats(3),
	},
	{
		name: "cost", about: "single requests of 1,000 tokens with answers of 16, engines that take no time", engines: 2, cacheBlocks: 16_384, short: true,
		traffic: timeless(50, 16),
	},
	{
		name: "tokens", about: "the same with answers of 100 tokens, streamed one by one at 200 a second", engines: 2, cacheBlocks: 16_384, eachToken: true, decode: 200,
		traffic: timeless(20, 100),
	},
}
