package openai

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/identity"
)

// Request has what the choice of a worker needs of a request's body. It refers to the body's
// memory, which must not change while the Request is in use.
type Request struct {
	Kind Kind
	// Model is the model as the client names it, which may be an adapter; empty: none.
	Model string
	// Stream: the client asked for server-sent events. IncludeUsage: and for the usage at their
	// end.
	Stream, IncludeUsage bool
	Hints                Hints
	// Salt is the cache salt of the body, trimmed; empty: none. See CacheSalt.
	Salt string
	// ExtraKey and Adapter are SGLang's extra_key, a second salt, and lora_path, the adapter of a
	// request whose model names none; empty: none. Other engines ignore both.
	ExtraKey, Adapter string
	// Session is what the body says of its session; nil: nothing.
	Session *identity.Body
	// MaxTokens is the client's limit on generated tokens; 0: none given.
	MaxTokens uint32

	// Prompts counts the prompts: more than one only in a batch of completions.
	Prompts int
	// Tokens has the first prompt's token ids if the body has ids instead of text, else nil.
	// FurtherTokens counts the ids of the batch's other prompts.
	Tokens        []uint32
	FurtherTokens int
	// FirstBytes and TextBytes are the approximate bytes of text of the first prompt and of all
	// prompts. Token counts are estimated from them where no tokenizer counts.
	FirstBytes, TextBytes int
	// Refers is the id of a former response or of a file on which the request builds; empty: none. The
	// engine that has it is the only one that can answer.
	Refers string
	// Media: the prompt has parts that are not text or not in the body, so that its text alone
	// does not determine its blocks.
	Media bool

	body    []byte // without a byte order mark
	open    int    // offset behind the bracket that opens the body
	idLists int    // how many members of another route may have token ids
	members [memberCount]span
}

// Hints has the members of nvext.agent_hints. Nil: not given.
type Hints struct {
	Priority       *int32
	StrictPriority *uint32
	OutputTokens   *uint32 // osl: expected output in tokens
	// LatencySensitivity is a priority jump in seconds. It is deprecated; Priority takes
	// precedence.
	LatencySensitivity *float64
}

// span is a value's place in the body: body[start:end]. No value starts at 0.
type span struct{ start, end int }

func (s span) exists() bool { return s.start > 0 }

// member is a member whose place in the body is remembered.
type member int

const (
	memberModel member = iota
	memberSalt
	memberMessages
	memberPrompt
	memberInput
	memberTools
	memberSystem
	memberInstructions
	memberTemplate
	memberTemplateKwargs
	memberDocuments
	memberReasoningEffort
	memberAddGeneration
	memberContinueFinal
	memberAddSpecial
	memberMaxTokens // max_output_tokens of a response
	memberMaxCompletionTokens
	memberTruncateTokens
	memberTruncationSide
	memberTruncation
	memberSuffix
	memberEcho
	memberTransfer
	memberKVHints
	memberIDs // token ids of another route, but for its input
	memberReasoning
	memberThinking
	memberOutputConfig
	memberCount
)

func (r *Request) raw(m member) []byte { return r.body[r.members[m].start:r.members[m].end] }

// Size returns the length of the body in bytes.
func (r *Request) Size() int { return len(r.body) }

// MayGrow reports whether the prompt may have more tokens than its body has bytes, beside those of the
// model's own template: with a template in the body, or with text whose normal form is longer.
func (r *Request) MayGrow() bool {
	return !r.isNull(memberTemplate) || bytes.ContainsFunc(r.body, func(c rune) bool { return c >= utf8.RuneSelf })
}

// isNull reports whether the member is missing or null.
func (r *Request) isNull(m member) bool {
	return !r.members[m].exists() || string(r.raw(m)) == "null"
}

// scanners are reused: they keep memory for strings with escapes.
var scanners = sync.Pool{New: func() any { return new(bodyscan.Scanner) }}

// ParseRequest reads the body of a request, without the byte order mark that it may begin with.
// The error is a *bodyscan.Error with the first fault, and never repeats text of the body. For
// the kind Other any body is accepted; of its prompt PromptIDs may read token ids.
func ParseRequest(kind Kind, body []byte) (*Request, error) {
	r := &Request{Kind: kind, body: bytes.TrimPrefix(body, []byte(byteOrderMark))}
	err := scan(r.body, func(s *bodyscan.Scanner) {
		s.Next()
		r.open = s.Offset() + 1
		shapes[kind].Read(s, r)
	})
	switch {
	case err == nil:
		return r, nil
	case kind == Other:
		return &Request{body: body}, nil // no JSON, or not of this form: it stays as it is
	default:
		return nil, err
	}
}

// shapes describes the bodies of the kinds. Members not listed are skipped.
var shapes = [...]*bodyscan.Object[Request]{
	Other: bodyscan.NewObject(slices.Concat(idFields(), truncation(), sessionFields(), []bodyscan.Field[Request]{
		placed("model", memberModel, readModel),
		placed("cache_salt", memberSalt, firstOf(readSalt)),
		placed("kv_hints", memberKVHints, skip),
		extraKey, adapter,
		field("stream", func(s *bodyscan.Scanner, r *Request) { r.Stream = readFlag(s) }),
		field("input_file_id", textOf(func(r *Request) *string { return &r.Refers })), // of a batch
	})...),
	Chat: bodyscan.NewObject(slices.Concat(fields(readSalt), truncation(), []bodyscan.Field[Request]{
		placed("messages", memberMessages, readMessages),
		placed("tools", memberTools, readSize),
		placed("max_completion_tokens", memberMaxCompletionTokens, readLimit),
		placed("max_tokens", memberMaxTokens, readLimit),
		placed("echo", memberEcho, skip),
		placed("kv_transfer_params", memberTransfer, skip),
		placed("chat_template", memberTemplate, skip),
		placed("chat_template_kwargs", memberTemplateKwargs, skip),
		placed("documents", memberDocuments, readSize),
		placed("reasoning_effort", memberReasoningEffort, skip),
		placed("add_generation_prompt", memberAddGeneration, skip),
		placed("continue_final_message", memberContinueFinal, skip),
		placed("add_special_tokens", memberAddSpecial, skip),
		extraKey, adapter,
		field("session_params", readElsewhere),
	})...),
	Completions: bodyscan.NewObject(slices.Concat(fields(firstOf(readSalt)), truncation(), []bodyscan.Field[Request]{
		placed("prompt", memberPrompt, readPrompts),
		field("prompt_embeds", readElsewhere),
		placed("suffix", memberSuffix, skip),
		placed("max_tokens", memberMaxTokens, readLimit),
		placed("add_special_tokens", memberAddSpecial, skip),
		extraKey, adapter,
		field("session_params", readElsewhere),
	})...),
	Responses: bodyscan.NewObject(append(
		fields(readSalt),
		placed("input", memberInput, readInput),
		placed("instructions", memberInstructions, readSize),
		placed("tools", memberTools, readSize),
		field("previous_response_id", readReference),
		field("prompt", readElsewhere),
		field("previous_input_messages", readElsewhere),
		placed("reasoning", memberReasoning, skip),
		placed("chat_template_kwargs", memberTemplateKwargs, skip),
		placed("max_output_tokens", memberMaxTokens, readLimit),
		placed("truncation", memberTruncation, skip),
		placed("kv_transfer_params", memberTransfer, skip),
		extraKey,
	)...),
	Messages: bodyscan.NewObject(append(
		fields(readSalt),
		placed("messages", memberMessages, readMessages),
		placed("system", memberSystem, readSystem),
		placed("tools", memberTools, readSize),
		placed("thinking", memberThinking, skip),
		placed("output_config", memberOutputConfig, skip),
		placed("chat_template_kwargs", memberTemplateKwargs, skip),
		placed("max_tokens", memberMaxTokens, readLimit),
		placed("kv_transfer_params", memberTransfer, skip),
	)...),
}

// The members of SGLang that separate caches beside the salt.
var (
	extraKey = field("extra_key", firstOf(textOf(func(r *Request) *string { return &r.ExtraKey })))
	adapter  = field("lora_path", firstOf(textOf(func(r *Request) *string { return &r.Adapter })))
)

// fields returns the members that all kinds with a prompt share; salt reads cache_salt.
func fields(salt func(*bodyscan.Scanner, *Request)) []bodyscan.Field[Request] {
	return append(
		sessionFields(),
		placed("model", memberModel, readModel),
		placed("cache_salt", memberSalt, salt),
		placed("kv_hints", memberKVHints, skip),
		field("stream", func(s *bodyscan.Scanner, r *Request) { r.Stream = readFlag(s) }),
		field("stream_options", readIfObject(streamOptions)),
		field("nvext", orNull(extension.Read)),
	)
}

// truncation returns the members that shorten the prompt of any kind but Responses and Messages.
func truncation() []bodyscan.Field[Request] {
	return []bodyscan.Field[Request]{
		placed("truncate_prompt_tokens", memberTruncateTokens, skip),
		placed("truncation_side", memberTruncationSide, skip),
	}
}

func field(name string, read func(*bodyscan.Scanner, *Request)) bodyscan.Field[Request] {
	return bodyscan.Field[Request]{Name: name, Read: read}
}

// placed returns a member that also remembers its place in the body.
func placed(name string, m member, read func(*bodyscan.Scanner, *Request)) bodyscan.Field[Request] {
	return field(name, func(s *bodyscan.Scanner, r *Request) {
		s.Next()
		start := s.Offset()
		read(s, r)
		r.members[m] = span{start, s.Offset()}
	})
}

// readLimit reads a limit on the generated tokens. The lowest of a body's limits counts. A value
// that is no positive number is ignored: the engine refuses it.
func readLimit(s *bodyscan.Scanner, r *Request) {
	c := s.Next()
	start := s.Offset()
	s.Skip()
	if c < '0' || c > '9' || s.Err() != nil {
		return
	}
	n := uint64(0)
	for _, d := range r.body[start:s.Offset()] {
		if d < '0' || d > '9' {
			return
		}
		n = min(n*10+uint64(d-'0'), math.MaxUint32)
	}
	if n > 0 && (r.MaxTokens == 0 || n < uint64(r.MaxTokens)) {
		r.MaxTokens = uint32(n)
	}
}

func skip(s *bodyscan.Scanner, _ *Request) { s.Skip() }

// readSize counts the bytes of a value that becomes text of every prompt.
func readSize(s *bodyscan.Scanner, r *Request) {
	c := s.Next()
	start := s.Offset()
	if s.Skip(); c != 'n' {
		r.countText(s.Offset() - start)
	}
}

func (r *Request) countText(n int) {
	r.TextBytes += n
	r.FirstBytes += n
}

// readElsewhere reads a member that refers to a prompt, or a part of one, that is not in the
// body.
func readElsewhere(s *bodyscan.Scanner, r *Request) {
	if s.Next() != 'n' {
		r.Media = true
	}
	s.Skip()
}

// readReference reads the id of the response before this one, which has the beginning of the prompt.
func readReference(s *bodyscan.Scanner, r *Request) {
	if s.Next() != '"' {
		readElsewhere(s, r)
		return
	}
	r.Media, r.Refers = true, s.String()
}

func readModel(s *bodyscan.Scanner, r *Request) {
	if !s.Null() {
		r.Model = s.String()
	}
}

func readSalt(s *bodyscan.Scanner, r *Request) {
	if s.Null() {
		return
	}
	if salt := strings.TrimSpace(s.String()); r.Salt == "" {
		r.Salt = salt // nvext.cache_salt takes precedence
	}
}

// textOf reads a text into a field. A value that is no text is ignored: the engine that has the
// member refuses it.
func textOf(field func(*Request) *string) func(*bodyscan.Scanner, *Request) {
	return func(s *bodyscan.Scanner, r *Request) {
		if s.Next() == '"' {
			*field(r) = s.String()
			return
		}
		s.Skip()
	}
}

// firstOf reads a member of which SGLang takes a list too, with a value for each prompt of a
// batch. Only that of the first prompt is needed: a batch of several is placed by load.
func firstOf(read func(*bodyscan.Scanner, *Request)) func(*bodyscan.Scanner, *Request) {
	return func(s *bodyscan.Scanner, r *Request) {
		if s.Next() != '[' {
			read(s, r)
			return
		}
		for i := range s.Array() {
			if i == 0 {
				read(s, r)
			} else {
				s.Skip()
			}
		}
	}
}

// readFlag reports whether the value is true. Anything else counts as false; the engine refuses
// what is no boolean.
func readFlag(s *bodyscan.Scanner) bool {
	if s.Next() == 't' {
		return s.Bool()
	}
	s.Skip()
	return false
}

// readIfObject reads an object of the given shape and skips anything else, which the engine
// refuses.
func readIfObject[T any](shape *bodyscan.Object[T]) func(*bodyscan.Scanner, *T) {
	return func(s *bodyscan.Scanner, v *T) {
		if s.Next() == '{' {
			shape.Read(s, v)
			return
		}
		s.Skip()
	}
}

var streamOptions = bodyscan.NewObject(
	field("include_usage", func(s *bodyscan.Scanner, r *Request) { r.IncludeUsage = readFlag(s) }),
)

// orNull reads a value that may be null; null means not given.
func orNull[T any](read func(*bodyscan.Scanner, *T)) func(*bodyscan.Scanner, *T) {
	return func(s *bodyscan.Scanner, v *T) {
		if !s.Null() {
			read(s, v)
		}
	}
}

// extension describes nvext. Its members are for the gateway, so wrong types are faults here.
var extension = bodyscan.NewObject(
	field("agent_hints", orNull(func(s *bodyscan.Scanner, r *Request) { hints.Read(s, &r.Hints) })),
	field("cache_salt", orNull(func(s *bodyscan.Scanner, r *Request) {
		if salt := strings.TrimSpace(s.String()); salt != "" {
			r.Salt = salt
		}
	})),
)

var hints = bodyscan.NewObject(
	bodyscan.Field[Hints]{Name: "priority", Read: bodyscan.Optional(func(h *Hints) **int32 { return &h.Priority }, readInt32)},
	bodyscan.Field[Hints]{Name: "strict_priority", Read: bodyscan.Optional(func(h *Hints) **uint32 { return &h.StrictPriority }, (*bodyscan.Scanner).Uint32)},
	bodyscan.Field[Hints]{Name: "osl", Read: bodyscan.Optional(func(h *Hints) **uint32 { return &h.OutputTokens }, (*bodyscan.Scanner).Uint32)},
	bodyscan.Field[Hints]{Name: "latency_sensitivity", Read: bodyscan.Optional(func(h *Hints) **float64 { return &h.LatencySensitivity }, (*bodyscan.Scanner).Float64)},
)

func readInt32(s *bodyscan.Scanner) int32 {
	negative := s.Next() == '-'
	v := int64(s.Hash64())
	if v < math.MinInt32 || v > math.MaxInt32 || v < 0 != negative && v != 0 {
		s.Fail("integer out of range, expected a signed 32-bit integer")
		return 0
	}
	return int32(v)
}
