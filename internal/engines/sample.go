package engines

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Labels of an engine's metrics that are read.
const (
	LabelEngine         = "engine"  // vLLM's data-parallel rank
	LabelDPRank         = "dp_rank" // SGLang's
	LabelBlockSize      = "block_size"
	LabelEffectiveBlock = "effective_attention_block_size"
	LabelBlocks         = "num_gpu_blocks"
	LabelTokens         = "kv_cache_size_tokens"
	LabelPageSize       = "page_size"
	LabelPages          = "num_pages"
)

var usedLabels = []string{
	LabelEngine, LabelDPRank, LabelBlockSize, LabelEffectiveBlock, LabelBlocks, LabelTokens, LabelPageSize, LabelPages,
}

// Sample is a line of a metrics page in Prometheus' text format, with those of its labels that are
// read.
type Sample struct {
	Name  string
	Value float64

	labels [][2]string // name and value
}

// ErrNoSample is the error of a line that is no sample.
var ErrNoSample = errors.New("a line of the metrics cannot be read")

// Label returns the value of a label, "" if the sample has none or it is not among those that are
// read.
func (s *Sample) Label(name string) string {
	for _, l := range s.labels {
		if l[0] == name {
			return l[1]
		}
	}
	return ""
}

// number returns a label as a positive number, 0 if it is none: engines write None.
func (s *Sample) number(label string) uint64 {
	n, err := strconv.ParseUint(s.Label(label), 10, 48)
	if err != nil {
		return 0
	}
	return n
}

// ReadSample reads a line in time that is linear in its length. The error is ErrNoSample.
func ReadSample(line []byte) (s Sample, err error) {
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return s, ErrNoSample
	}
	s.Name = string(line[:end])
	rest := bytes.TrimLeft(line[end:], " \t")
	if len(rest) > 0 && rest[0] == '{' {
		if rest, err = s.readLabels(rest[1:]); err != nil {
			return s, err
		}
	}
	fields := bytes.Fields(rest[:min(len(rest), maxValue)]) // the value, and perhaps a time
	if len(fields) == 0 {
		return s, ErrNoSample
	}
	if s.Value, err = strconv.ParseFloat(string(fields[0]), 64); err != nil && !errors.Is(err, strconv.ErrRange) {
		return s, ErrNoSample
	}
	return s, nil
}

// maxValue bounds the text of a value and its time, in bytes.
const maxValue = 512

// readLabels reads labels up to the closing brace, and returns what follows it.
func (s *Sample) readLabels(text []byte) (rest []byte, err error) {
	for {
		text = bytes.TrimLeft(text, " \t,")
		if len(text) > 0 && text[0] == '}' {
			return text[1:], nil
		}
		name, value, ok := bytes.Cut(text, []byte{'='})
		if !ok {
			return nil, ErrNoSample
		}
		value = bytes.TrimLeft(value, " \t")
		if len(value) == 0 || value[0] != '"' {
			return nil, ErrNoSample
		}
		end, escaped := 1, false
		for end < len(value) && value[end] != '"' {
			if value[end] == '\\' {
				escaped = true
				end++
			}
			end++
		}
		if end >= len(value) {
			return nil, ErrNoSample
		}
		s.setLabel(bytes.TrimSpace(name), value[1:end], escaped)
		text = value[end+1:]
	}
}

var unescaper = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// setLabel keeps a label that is read, the first where it is given twice.
func (s *Sample) setLabel(name, value []byte, escaped bool) {
	i := slices.IndexFunc(usedLabels, func(used string) bool { return used == string(name) })
	if i < 0 || len(value) == 0 || s.Label(usedLabels[i]) != "" {
		return
	}
	text := string(value)
	if escaped {
		text = unescaper.Replace(text)
	}
	s.labels = append(s.labels, [2]string{usedLabels[i], text})
}

// VLLMCacheInfo is the family of vLLM whose labels describe its KV cache. There is a series for each
// rank of the page, and nearly all of its labels hold for each of them; LabelBlocks alone is the sum
// over all ranks (vLLM's core_client.py, as of 0.33).
const VLLMCacheInfo = "vllm:cache_config_info"

// VLLMBlockSize returns the block size, in tokens, of the events of an engine with this sample of
// VLLMCacheInfo, as its label says it: that of full attention, where the engine tells it, else
// block_size. The latter is the least of all attention groups, and leaves decode context parallelism
// out.
func (s *Sample) VLLMBlockSize() string {
	if s.number(LabelEffectiveBlock) > 0 {
		return s.Label(LabelEffectiveBlock)
	}
	return s.Label(LabelBlockSize)
}

// VLLMTokens returns the capacity of one rank's KV cache in tokens by its sample of VLLMCacheInfo on a
// page with a number of ranks; 0: not known. The number of blocks can be used only where all blocks
// have one size, since it is not known of which group they are: not if the engine's events have larger
// ones than block_size says, which is the least of all groups. events is the block size of these, 0 if it
// is not known.
func (s *Sample) VLLMTokens(ranks int, events uint32) uint64 {
	if tokens := s.VLLMTokensTold(); tokens > 0 {
		return tokens
	}
	size := s.number(LabelBlockSize)
	if effective := s.number(LabelEffectiveBlock); effective > 0 && effective != size {
		return 0
	}
	if uint64(events) > size {
		return 0
	}
	if blocks := s.number(LabelBlocks) / uint64(max(ranks, 1)); size > 0 && blocks <= maxTokens/size {
		return blocks * size
	}
	return 0
}

// VLLMTokensTold returns the capacity of one rank's KV cache in tokens where the sample of
// VLLMCacheInfo states it, else 0.
func (s *Sample) VLLMTokensTold() uint64 { return s.number(LabelTokens) }

// maxTokens bounds a capacity.
const maxTokens = 1 << 48
