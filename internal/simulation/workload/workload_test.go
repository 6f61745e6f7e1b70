package workload

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/test/helpers/length"
)

func digest(requests []Request) uint64 {
	h := fnv.New64a()
	var word [8]byte
	put := func(v uint64) {
		binary.LittleEndian.PutUint64(word[:], v)
		h.Write(word[:])
	}
	for _, r := range requests {
		put(uint64(r.ID))
		put(uint64(r.At))
		for _, text := range [][]uint32{r.Prompt, r.Output} {
			put(uint64(len(text)))
			for _, tok := range text {
				put(uint64(tok))
			}
		}
	}
	return h.Sum64()
}

// TestGenerateIsDeterministic proves that a seed names one workload, today and
// tomorrow: figures in docs/figures/demo-policies.md were made with these.
func TestGenerateIsDeterministic(t *testing.T) {
	length.Sequential(t)
	for seed, want := range map[uint64]uint64{
		1: 0xaa2613515cdd52be, 2: 0x27464623238ec72e, 3: 0xb3558261afcbb7f8,
	} {
		if testing.Short() && seed > 1 {
			continue
		}
		got := digest(DefaultChats().Generate(seed, 1000))
		if got != want {
			t.Errorf("seed %d: digest %#x, want %#x: the workload has changed, measure docs/figures/demo-policies.md again", seed, got, want)
		}
	}
}

// TestAgentsAreDeterministic is the same for the other population.
func TestAgentsAreDeterministic(t *testing.T) {
	length.Sequential(t)
	all := DefaultAgents().Generate(1, 600)
	if got, want := digest(all), uint64(0x5016664538882446); got != want {
		t.Errorf("digest %#x, want %#x: the workload has changed", got, want)
	}
	if digest(all[:200]) != digest(DefaultAgents().Generate(1, 200)) {
		t.Error("the first 200 of 600 differ from 200")
	}
}

// TestAgentsShape proves what the population is for: requests that come at once on one
// long context, contexts that grow step by step and are cut back, and lookups whose
// documents others ask for too.
func TestAgentsShape(t *testing.T) {
	length.Sequential(t)
	a := DefaultAgents()
	requests := a.Generate(1, 600)
	heads, together, grown := map[string]int{}, 0, 0
	for i, r := range requests {
		if r.ID != i+1 || i > 0 && r.At < requests[i-1].At || len(r.Output) == 0 {
			t.Fatalf("request %d has id %d at %v, %d output tokens", i, r.ID, r.At, len(r.Output))
		}
		if len(r.Prompt) > a.Compact+a.Call.Max+a.Result.Max+a.Question.Max {
			t.Errorf("request %d: a prompt of %d tokens", r.ID, len(r.Prompt))
		}
		heads[key(r.Prompt[:min(64, len(r.Prompt))])]++
		for j := i - 1; j >= 0; j-- {
			if rest, ok := after(r.Prompt, requests[j].Prompt); ok && len(rest) > 0 {
				grown++
				break
			}
		}
		for j := i - 1; j >= 0 && requests[j].At == r.At; j-- {
			p := requests[j].Prompt
			if len(p) > 4000 && len(r.Prompt) > 4000 && slices.Equal(p[:4000], r.Prompt[:4000]) {
				together++
				break
			}
		}
	}
	if grown < 300 || together < 20 || len(heads) > 200 {
		t.Errorf("of 600 requests %d go on from another, %d come with one on the same context; %d beginnings", grown, together, len(heads))
	}
}

// TestLongAgentsShape proves that long contexts are nearly all of what was sent before.
func TestLongAgentsShape(t *testing.T) {
	length.Sequential(t)
	const block = 64
	seen := make(map[string]bool) // all beginnings, by their last block: texts do not repeat
	long, blocks, known := 0, 0, 0
	requests := LongAgents().Generate(1, 300)
	for _, r := range requests {
		if n := len(r.Prompt); n >= 50_000 && n <= 205_000 {
			long++
		}
		for at := block; at <= len(r.Prompt); at += block {
			k := key(r.Prompt[at-block : at])
			blocks++
			if seen[k] {
				known++
			}
			seen[k] = true
		}
	}
	if 10*long < 8*len(requests) || 10*known < 9*blocks {
		t.Errorf("%d of %d requests are long, %d of %d blocks were sent before", long, len(requests), known, blocks)
	}
	t.Logf("%d of %d requests are long, %d of %d blocks were sent before", long, len(requests), known, blocks)
}

// TestFewerIsThePrefix proves that a shorter run plays the first requests of a
// longer one.
func TestFewerIsThePrefix(t *testing.T) {
	long := DefaultChats().Generate(5, 300)
	if digest(long[:100]) != digest(DefaultChats().Generate(5, 100)) {
		t.Error("the first 100 of 300 differ from 100")
	}
}

// TestChatsGrow proves the shape: requests are numbered in order of time, every
// prompt begins with a system prompt, and most repeat an earlier prompt and its
// answer and add a question.
func TestChatsGrow(t *testing.T) {
	c := DefaultChats()
	requests := c.Generate(1, 400)
	heads := map[string]int{} // by the first tokens
	later := 0
	for i, r := range requests {
		if r.ID != i+1 || (i > 0 && r.At < requests[i-1].At) {
			t.Fatalf("request %d has id %d at %v", i, r.ID, r.At)
		}
		if len(r.Prompt) <= c.SystemMin || len(r.Output) == 0 || len(r.Output) > c.Answer.Max {
			t.Fatalf("request %d: prompt of %d, answer of %d tokens", r.ID, len(r.Prompt), len(r.Output))
		}
		heads[key(r.Prompt[:c.SystemMin])]++
		for j := i - 1; j >= 0; j-- {
			prompt, answer := requests[j].Prompt, requests[j].Output
			rest, ok := after(r.Prompt, prompt)
			if ok {
				rest, ok = after(rest, answer)
			}
			if ok && len(rest) > 0 {
				later++
				break
			}
		}
	}
	if len(heads) != c.Apps {
		t.Errorf("%d system prompts, want %d", len(heads), c.Apps)
	}
	if later < len(requests)/2 {
		t.Errorf("%d of %d requests continue a chat", later, len(requests))
	}
}

// after returns what follows head in tokens, and false if it is not there.
func after(tokens, head []uint32) ([]uint32, bool) {
	if len(tokens) < len(head) || !slices.Equal(tokens[:len(head)], head) {
		return nil, false
	}
	return tokens[len(head):], true
}

func key(tokens []uint32) string {
	var b []byte
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return string(b)
}

// TestRate proves that bursts leave the mean rate of chats as configured.
func TestRate(t *testing.T) {
	c := DefaultChats()
	c.MoreTurns, c.Opening, c.SystemMin, c.SystemMax = 0, Length{Median: 1, Max: 1}, 1, 1
	s := Summarize(c.Generate(1, 5_000))
	if rate := float64(s.Requests) / s.Span.Seconds(); rate < 0.9*c.ChatsPerSec || rate > 1.1*c.ChatsPerSec {
		t.Errorf("%.2f chats a second, want %.2f", rate, c.ChatsPerSec)
	}
}

// TestReadTrace proves how hash ids become tokens.
func TestReadTrace(t *testing.T) {
	requests, err := ReadTrace(strings.NewReader(`
{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 250, "input_length": 1024, "output_length": 0, "hash_ids": [7, 8], "more": 1}
{"timestamp": 100, "input_length": 512, "output_length": 2, "hash_ids": [8]}
{"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": [1]}
`), 3)
	if err != nil {
		t.Fatal(err)
	}
	type shape struct {
		ID             int
		At             time.Duration
		Prompt, Output int
	}
	var got []shape
	for _, r := range requests {
		got = append(got, shape{r.ID, r.At, len(r.Prompt), len(r.Output)})
	}
	want := []shape{{1, 0, 600, 5}, {2, 100 * time.Millisecond, 512, 2}, {3, 250 * time.Millisecond, 1024, 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("requests (-want +got):\n%s", diff)
	}
	short, other, long := requests[0].Prompt, requests[1].Prompt, requests[2].Prompt
	if !slices.Equal(short, long[:600]) {
		t.Error("equal ids give different tokens")
	}
	if !slices.Equal(long[512:], other) || slices.Equal(long[:512], other) {
		t.Error("an id's tokens depend on its place, or two ids are equal")
	}
}

// TestWriteTrace proves that a written workload reads as one of the same lengths and
// times in which the same whole blocks are shared.
func TestWriteTrace(t *testing.T) {
	written := DefaultAgents().Generate(3, 120)
	var text strings.Builder
	if err := WriteTrace(&text, written); err != nil {
		t.Fatal(err)
	}
	read, err := ReadTrace(strings.NewReader(text.String()), len(written))
	if err != nil {
		t.Fatal(err)
	}
	shared := func(a, b []uint32) int {
		n := 0
		for (n+1)*TraceBlock <= min(len(a), len(b)) && slices.Equal(a[n*TraceBlock:(n+1)*TraceBlock], b[n*TraceBlock:(n+1)*TraceBlock]) {
			n++
		}
		return n
	}
	total := 0
	for i, r := range read {
		w := written[i]
		if len(r.Prompt) != len(w.Prompt) || len(r.Output) != len(w.Output) || r.At != w.At.Truncate(time.Millisecond) {
			t.Fatalf("request %d: %d and %d tokens at %v, written as %d and %d at %v",
				i+1, len(r.Prompt), len(r.Output), r.At, len(w.Prompt), len(w.Output), w.At)
		}
		for j := range i {
			got, want := shared(r.Prompt, read[j].Prompt), shared(w.Prompt, written[j].Prompt)
			if got != want {
				t.Fatalf("requests %d and %d share %d blocks, written %d", i+1, j+1, got, want)
			}
			total += want
		}
	}
	if total == 0 {
		t.Error("nothing is shared")
	}
}

func TestReadTraceRefuses(t *testing.T) {
	for name, line := range map[string]string{
		"not JSON":          `{"timestamp"`,
		"no input":          `{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}`,
		"too few ids":       `{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}`,
		"too many ids":      `{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}`,
		"negative time":     `{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}`,
		"negative output":   `{"timestamp": 0, "input_length": 1, "output_length": -1, "hash_ids": [1]}`,
		"absurdly long":     `{"timestamp": 0, "input_length": 99999999999, "output_length": 1, "hash_ids": [1]}`,
		"ids are no number": `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadTrace(strings.NewReader(line), 10); !errors.Is(err, ErrTrace) {
				t.Errorf("err = %v, want %v", err, ErrTrace)
			}
		})
	}
}

// FuzzReadTrace proves that no input panics and that what is read is playable.
func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp": 3, "input_length": 513, "output_length": 1, "hash_ids": [1, 2]}` + "\n"))
	f.Add([]byte("\n{}\n[1]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		requests, err := ReadTrace(strings.NewReader(string(raw)), 4)
		if err != nil {
			return
		}
		for i, r := range requests {
			if r.ID != i+1 || r.At < 0 || len(r.Prompt) == 0 || len(r.Output) == 0 {
				t.Fatalf("request %d: id %d at %v, prompt of %d, answer of %d", i, r.ID, r.At, len(r.Prompt), len(r.Output))
			}
		}
	})
}
