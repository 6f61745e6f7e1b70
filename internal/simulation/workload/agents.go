package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Agents describes programs that work on tasks with tools, and separate lookups of single
// documents. It differs from [Chats] in what makes routing hard: answers are short and the next
// request follows within seconds; contexts are long and grow by the results of tools; sub-agents
// branch off one context at the same moment; contexts that have grown too long are replaced by a
// summary; several tasks begin at once; and lookups share documents but have no next turn.
type Agents struct {
	Kinds     int // kinds of agents, each with its own prompt; the k-th is used 1/k as often as the first
	PromptMin int // tokens of the shortest such prompt: instructions and tools
	PromptMax int
	Task      Length        // task of an agent, with the files that it is given
	Call      Length        // an answer: a thought and a call of a tool
	Result    Length        // what a tool returns
	ToolTime  time.Duration // mean, exponential, on top of minTool
	MoreSteps float64       // chance that a step is followed by another
	MaxSteps  int
	Branch    float64 // probability that a step of a task starts sub-agents
	Branches  int     // the most sub-agents that start at once; the least is 2
	Compact   int     // tokens of context at which it is replaced by a summary
	Summary   Length

	Lookups   float64 // lookups for each task
	Documents int     // the k-th is used 1/k as often as the first
	Document  Length
	Question  Length
	Answer    Length

	TasksPerSec float64 // mean
	Batch       float64 // mean number of tasks that begin at once, geometric
	AnswerRate  float64 // output tokens a second, for the pace of an agent
}

// DefaultAgents is a population that is about the most that round robin can bear on four
// default engines, and easy for policies that know the caches.
func DefaultAgents() Agents {
	return Agents{
		Kinds: 10, PromptMin: 3000, PromptMax: 9000,
		Task:      Length{Median: 5000, Sigma: 0.8, Max: 20000},
		Call:      Length{Median: 80, Sigma: 0.7, Max: 800},
		Result:    Length{Median: 500, Sigma: 1.2, Max: 8000},
		ToolTime:  2 * time.Second,
		MoreSteps: 0.9, MaxSteps: 30,
		Branch: 0.06, Branches: 5,
		Compact: 28000, Summary: Length{Median: 1500, Sigma: 0.3, Max: 4000},
		Lookups: 2, Documents: 300,
		Document: Length{Median: 2500, Sigma: 0.6, Max: 12000},
		Question: Length{Median: 60, Sigma: 0.5, Max: 400},
		Answer:   Length{Median: 250, Sigma: 0.5, Max: 1000},

		TasksPerSec: 0.6, Batch: 2, AnswerRate: 50,
	}
}

// LongAgents is a population with contexts of 50,000 to 200,000 tokens, nearly all of which the
// request before has sent: agents that read large files, with sub-agents on the same context, and
// without lookups. It needs engines, or a fleet, that hold such contexts.
func LongAgents() Agents {
	a := DefaultAgents()
	a.Kinds, a.PromptMin, a.PromptMax = 5, 35_000, 50_000
	a.Task = Length{Median: 15_000, Sigma: 0.4, Max: 40_000}
	a.Call = Length{Median: 150, Sigma: 0.7, Max: 1500}
	a.Result = Length{Median: 1500, Sigma: 1, Max: 20_000}
	a.MoreSteps, a.MaxSteps = 0.95, 40
	a.Compact, a.Summary = 180_000, Length{Median: 4000, Sigma: 0.3, Max: 8000}
	a.Lookups = 0
	return a
}

// minTool is the shortest time in seconds between an answer and the request with the tool's
// result. It also covers the time to the first token.
const minTool = 1

// Generate returns the first n requests of the population.
func (a Agents) Generate(seed uint64, n int) []Request {
	g := agents{Agents: a, seed: seed, rnd: rand.New(rand.NewPCG(seed, 0xa6e27))}
	for i := range a.Kinds {
		length := a.PromptMin + g.rnd.IntN(a.PromptMax-a.PromptMin+1)
		g.prompts = append(g.prompts, text(length, seed, toolText, uint64(i)))
	}
	for i := range a.Documents {
		g.documents = append(g.documents, text(a.Document.draw(g.rnd), seed, documentText, uint64(i)))
	}
	at := time.Duration(0)
	// Tasks begin in order of time. So once n requests lie before the newest beginning, no
	// later task can come before them.
	for before := 0; before < n; before = countBefore(g.all, at) {
		at += seconds(g.rnd.ExpFloat64() * a.Batch / a.TasksPerSec)
		for more := true; more; more = g.rnd.Float64() >= 1/a.Batch {
			g.task(Request{At: at}, g.prompts[zipf(g.rnd, a.Kinds)], true)
			g.lookups(at)
		}
	}
	return first(n, g.all)
}

type agents struct {
	Agents
	seed      uint64
	rnd       *rand.Rand
	prompts   [][]uint32
	documents [][]uint32
	texts     uint64 // texts made so far, the key of the next
	sessions  int    // begun so far
	all       []Request
}

// task appends the requests of an agent that begins with r on a context, and of the sub-agents that it starts. It returns
// when the agent ends.
func (a *agents) task(r Request, context []uint32, mayBranch bool) time.Duration {
	a.sessions++
	r.Session = fmt.Sprintf("agent-%d", a.sessions)
	head, said := len(context), append([]uint32(nil), context...)
	said = append(said, a.text(a.Task)...)
	for step := 1; ; step++ {
		call := a.text(a.Call)
		r.Prompt, r.Output = said[:len(said):len(said)], call
		a.all = append(a.all, r)
		said = append(said, call...)
		pause := minTool + a.rnd.ExpFloat64()*a.ToolTime.Seconds()
		r.At += seconds(float64(len(call))/a.AnswerRate + pause)
		r.After, r.Pause = []int{len(a.all)}, seconds(pause)
		if step == a.MaxSteps || a.rnd.Float64() >= a.MoreSteps {
			return r.At
		}
		if mayBranch && a.rnd.Float64() < a.Branch {
			a.branch(&r, said)
		}
		said = append(said, a.text(a.Result)...)
		if len(said) > a.Compact && len(said) > 2*head {
			said = append(append([]uint32(nil), context...), a.text(a.Summary)...)
		}
	}
}

// branch starts several sub-agents at the same time on one context, in place of the agent's next request r, which comes when
// the last one has ended.
func (a *agents) branch(r *Request, context []uint32) {
	sub := *a // their tasks are shorter
	sub.Task, sub.MaxSteps = a.Question, 4
	begin := *r
	begin.Parent = r.Session
	for range 2 + a.rnd.IntN(a.Branches-1) {
		begin.After = slices.Clone(begin.After)
		r.At = max(r.At, sub.task(begin, context, false))
		r.After = append(r.After, len(sub.all))
	}
	r.Pause = seconds(minTool)
	a.all, a.texts, a.sessions = sub.all, sub.texts, sub.sessions
}

// lookups appends the lookups of a task, spread over the time of a task.
func (a *agents) lookups(at time.Duration) {
	for range int(a.Lookups + a.rnd.Float64()) {
		prompt := append([]uint32(nil), a.documents[zipf(a.rnd, a.Documents)]...)
		prompt = append(prompt, a.documents[zipf(a.rnd, a.Documents)]...)
		prompt = append(prompt, a.text(a.Question)...)
		a.all = append(a.all, Request{At: at + seconds(a.rnd.Float64()*30), Prompt: prompt, Output: a.text(a.Answer)})
	}
}

// text returns new text of a random length.
func (a *agents) text(l Length) []uint32 {
	a.texts++
	return text(l.draw(a.rnd), a.seed, agentText, a.texts)
}
