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
	Timestamp    int64    `json:"timestamp"` // ms since the start
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"` // one for each block of TraceBlock tokens; the last block may be partial
}

// Bounds of one line: tokens of the prompt and of the answer, and a year in ms.
const (
	maxTokens    = 2 << 20
	maxTimestamp = 365 * 24 * 3600 * 1000
)

// ReadTrace reads the first n requests of a Mooncake trace: one JSON object a line. Equal
// hash ids become equal tokens. Of answers the trace has only the lengths, so answers are
// never part of later prompts.
func ReadTrace(r io.Reader, n int) ([]Request, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 16<<20)
	var all []Request
	for number := 1; len(all) < n && lines.Scan(); number++ {
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
		all = append(all, l.request(len(all)))
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return first(n, all), nil
}

func (l *traceLine) validate() error {
	switch {
	case l.Timestamp < 0 || l.Timestamp > maxTimestamp:
		return fmt.Errorf("timestamp %d is outside 0..%d", l.Timestamp, int64(maxTimestamp))
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
		At:     time.Duration(l.Timestamp) * time.Millisecond,
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
		l := traceLine{Timestamp: r.At.Milliseconds(), InputLength: len(r.Prompt), OutputLength: len(r.Output)}
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
