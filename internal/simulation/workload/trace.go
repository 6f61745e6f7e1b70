package workload

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// TraceBlock is the number of tokens that one hash id of a Mooncake trace
// stands for (Mooncake, FAST '25).
const TraceBlock = 512

// ErrTrace is the error for a line that is no request of a Mooncake trace.
var ErrTrace = errors.New("bad trace line")

type traceLine struct {
	Timestamp    float64  `json:"timestamp"` // ms since the start
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"` // one for each block of TraceBlock tokens; the last block may be partial

	// Session makes the line a turn of a session (aiperf, `aiperf synthesize agentic-code`): all lines but its first have
	// only what is new behind the former prompt and its answer, and come Delay after that answer.
	Session string  `json:"session_id,omitempty"`
	Delay   float64 `json:"delay,omitempty"` // ms
	// Parent, on the first line of a session, is the session that starts it, Delay after the answer to that one's ParentTurn
	// (from 1). The parent's next turn waits for its end. These two are not aiperf's.
	Parent     string `json:"parent_session_id,omitempty"`
	ParentTurn int    `json:"parent_turn,omitempty"`
}

// Bounds of one line: tokens of the prompt and of the answer, and a year in ms.
const (
	maxTokens    = 2 << 20
	maxTimestamp = 365 * 24 * 3600 * 1000
)

// maxTrace bounds the lines of a trace, so that a trace of sessions, which must be read to its end, fits into memory.
const maxTrace = 1 << 20

// ReadTrace reads the first n requests of a Mooncake trace: one JSON object a line. Equal
// hash ids become equal tokens. Of answers the trace has only the lengths, so answers are
// part of later prompts of their session alone.
func ReadTrace(r io.Reader, n int) ([]Request, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 16<<20)
	var all []Request
	s := sessions{turns: make(map[string][]int), children: make(map[int][]string)}
	for number := 1; (len(all) < n || len(s.turns) > 0) && len(all) < maxTrace && lines.Scan(); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var l traceLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: %w: %w", number, ErrTrace, err)
		}
		if err := l.validate(); err != nil {
			return nil, fmt.Errorf("line %d: %w: %w", number, ErrTrace, err)
		}
		r, err := s.request(&l, all)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w: %w", number, ErrTrace, err)
		}
		all = append(all, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	s.link(all)
	return first(n, all), nil
}

// sessions are the sessions of a trace. Requests are named by their places in the list, from 1.
type sessions struct {
	turns    map[string][]int
	children map[int][]string // the sessions that begin after a turn
}

// request returns the request of a line that is behind all others. Its After has the line of its parent at most.
func (s *sessions) request(l *traceLine, all []Request) (Request, error) {
	r := l.request(len(all))
	if l.Session == "" {
		return r, nil
	}
	r.Session, r.Pause = l.Session, time.Duration(l.Delay*float64(time.Millisecond))
	if turns := s.turns[l.Session]; len(turns) > 0 {
		before := &all[turns[len(turns)-1]-1]
		if len(before.Prompt)+len(before.Output)+len(r.Prompt) > maxTokens {
			return r, fmt.Errorf("session %q has more than %d tokens", l.Session, maxTokens)
		}
		// The turns share their memory: each one's prompt is a part of the next one's.
		said := append(append(before.Prompt, before.Output...), r.Prompt...)
		before.Prompt = said[:len(before.Prompt):len(before.Prompt)]
		r.Prompt, r.Parent = said, before.Parent
	} else if l.Parent != "" {
		turns := s.turns[l.Parent]
		if l.ParentTurn < 1 || l.ParentTurn > len(turns) {
			return r, fmt.Errorf("parent_turn %d of session %q is on no line before this one", l.ParentTurn, l.Parent)
		}
		after := turns[l.ParentTurn-1]
		r.Parent, r.After = l.Parent, []int{after}
		s.children[after] = append(s.children[after], l.Session)
	}
	s.turns[l.Session] = append(s.turns[l.Session], len(all)+1)
	return r, nil
}

// link has each turn come after the one before it and after the sessions that began there, and sets when it comes.
func (s *sessions) link(all []Request) {
	for _, turns := range s.turns {
		for i, before := range turns[:len(turns)-1] {
			next := &all[turns[i+1]-1]
			next.After = []int{before}
			for _, child := range s.children[before] {
				of := s.turns[child]
				next.After = append(next.After, of[len(of)-1])
			}
		}
	}
	known := make([]bool, len(all))
	var set func(place int) time.Duration // the time of the answer's end
	set = func(place int) time.Duration {
		r := &all[place-1]
		if !known[place-1] {
			known[place-1] = true // sessions begin after lines before their own: nothing waits for itself
			for _, after := range r.After {
				r.At = max(r.At, set(after)+r.Pause)
			}
		}
		return r.At + seconds(float64(len(r.Output))/traceRate)
	}
	for i := range all {
		set(i + 1)
	}
}

// traceRate is the number of output tokens a second that times of sessions in a trace assume.
const traceRate = 50

func (l *traceLine) validate() error {
	switch {
	case !(l.Timestamp >= 0 && l.Timestamp <= maxTimestamp):
		return fmt.Errorf("timestamp %g is outside 0..%d", l.Timestamp, int64(maxTimestamp))
	case !(l.Delay >= 0 && l.Delay <= maxTimestamp):
		return fmt.Errorf("delay %g is outside 0..%d", l.Delay, int64(maxTimestamp))
	case l.InputLength < 1 || l.InputLength > maxTokens:
		return fmt.Errorf("input_length %d is outside 1..%d", l.InputLength, maxTokens)
	case l.OutputLength < 0 || l.OutputLength > maxTokens:
		return fmt.Errorf("output_length %d is outside 0..%d", l.OutputLength, maxTokens)
	case len(l.HashIDs) != (l.InputLength+TraceBlock-1)/TraceBlock:
		return fmt.Errorf("%d hash_ids for input_length %d", len(l.HashIDs), l.InputLength)
	}
	return nil
}

func (l *traceLine) request(index int) Request {
	prompt := make([]uint32, 0, len(l.HashIDs)*TraceBlock)
	for _, id := range l.HashIDs {
		prompt = append(prompt, text(TraceBlock, 0, traceText, id)...)
	}
	return Request{
		At:     time.Duration(l.Timestamp * float64(time.Millisecond)),
		Prompt: prompt[:l.InputLength:l.InputLength],
		Output: text(max(1, l.OutputLength), 0, traceAnswer, uint64(index)),
	}
}

// WriteTrace writes requests as a Mooncake trace: blocks have equal hash ids if the prompts are
// equal from their first token to the end of the block. The format cannot express differences
// within a block, the tokens of answers, and times below a millisecond.
func WriteTrace(w io.Writer, requests []Request) error {
	type block struct {
		parent uint64 // id of the block before, plus 1; 0: none
		tokens uint64 // their hash
	}
	ids := map[block]uint64{}
	out := json.NewEncoder(w)
	for _, r := range requests {
		l := traceLine{Timestamp: float64(r.At.Milliseconds()), InputLength: len(r.Prompt), OutputLength: len(r.Output)}
		parent := uint64(0)
		for tokens := range slices.Chunk(r.Prompt, TraceBlock) {
			text := make([]byte, 0, 4*TraceBlock)
			for _, t := range tokens {
				text = binary.LittleEndian.AppendUint32(text, t)
			}
			b := block{parent, xxh3.Hash(text)}
			id, known := ids[b]
			if !known {
				id = uint64(len(ids))
				ids[b] = id
			}
			l.HashIDs = append(l.HashIDs, id)
			parent = id + 1
		}
		if err := out.Encode(l); err != nil {
			return fmt.Errorf("write trace: %w", err)
		}
	}
	return nil
}
