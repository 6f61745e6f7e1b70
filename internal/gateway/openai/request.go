package openai

import (
	"math"
	"strings"
	"sync"

	"github.com/select-service/select-service/internal/bodyscan"
)

// Request is what a request's body says of its place. It reads the body in place: the
// body must not change while the Request is in use.
type Request struct {
	Kind Kind
	// Model is the model as the client names it, which may be an adapter; empty: none.
	Model string
	// Stream: the client asked for server-sent events; IncludeUsage: with the usage at
	// their end.
	Stream, IncludeUsage bool
	Hints                Hints
	// Salt is the cache salt of the body, trimmed; empty: none. See CacheSalt.
	Salt string
	// MaxTokens is the most tokens to generate that the client allows; 0: not said.
	MaxTokens uint32

	// Prompts counts the prompts: more than one only in a batch of completions.
	Prompts int
	// Tokens are those of the first prompt where the body has token ids instead of a
	// text, else nil; FurtherTokens counts those of the other prompts of the batch.
	Tokens        []uint32
	FurtherTokens int
	// FirstBytes and TextBytes are about how many bytes of text the first prompt and all
	// of them have: what its tokens are estimated from where nobody counts them.
	FirstBytes, TextBytes int
	// Media: the prompt has parts that are no text, or is kept elsewhere, so that its
	// text alone does not tell what an engine has cached of it.
	Media bool

	body    []byte
	open    int // offset behind the bracket that opens the body
	members [memberCount]span
}

// Hints are the members of nvext.agent_hints. Nil is not given.
type Hints struct {
	Priority       *int32
	StrictPriority *uint32
	OutputTokens   *uint32 // osl: how many tokens are expected
	// LatencySensitivity is deprecated: a priority jump, in seconds.
	LatencySensitivity *float64
}

// span is a value's place in the body: body[start:end]. No value starts at 0.
type span struct{ start, end int }

func (s span) exists() bool { return s.start > 0 }

// The members of a body whose place is kept.
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
	memberToolChoice
	memberCount
)

func (r *Request) raw(m member) []byte { return r.body[r.members[m].start:r.members[m].end] }

// isNull reports whether the member is missing or null.
func (r *Request) isNull(m member) bool {
	return !r.members[m].exists() || string(r.raw(m)) == "null"
}

// scanners are reused: they keep memory for strings with escapes.
var scanners = sync.Pool{New: func() any { return new(bodyscan.Scanner) }}

// ParseRequest reads the body of a request. The error is a *bodyscan.Error with the
// first fault, and never repeats a text of the body. The body of another kind may be
// anything, and is no fault; only its model is read.
func ParseRequest(kind Kind, body []byte) (*Request, error) {
	s := scanners.Get().(*bodyscan.Scanner)
	defer func() {
		s.Reset(bodyscan.JSON, nil)
		scanners.Put(s)
	}()
	r := &Request{Kind: kind, body: body}
	if kind == Other {
		if err := otherShape.Decode(s, bodyscan.JSON, body, r); err != nil {
			return &Request{body: body}, nil // no JSON, or not of this form
		}
		return r, nil
	}
	s.Reset(bodyscan.JSON, body)
	s.Next()
	r.open = s.Offset() + 1
	shapes[kind].Read(s, r)
	if err := s.End(); err != nil {
		return nil, err
	}
	return r, nil
}

// otherShape is the body of a route without a prompt.
var otherShape = bodyscan.NewObject(field("model", readModel))

// shapes are the bodies of each kind with a prompt. What is not here is passed over.
var shapes = [...]*bodyscan.Object[Request]{
	Chat: bodyscan.NewObject(append(
		fields(),
		placed("messages", memberMessages, readMessages),
		placed("tools", memberTools, readSize),
		limit("max_completion_tokens"),
		limit("max_tokens"),
		placed("chat_template", memberTemplate, skip),
		placed("chat_template_kwargs", memberTemplateKwargs, skip),
		placed("documents", memberDocuments, readSize),
		placed("reasoning_effort", memberReasoningEffort, skip),
		placed("add_generation_prompt", memberAddGeneration, skip),
		placed("continue_final_message", memberContinueFinal, skip),
		placed("add_special_tokens", memberAddSpecial, skip),
	)...),
	Completions: bodyscan.NewObject(append(
		fields(),
		placed("prompt", memberPrompt, readPrompts),
		field("prompt_embeds", readElsewhere),
		limit("max_tokens"),
		placed("add_special_tokens", memberAddSpecial, skip),
	)...),
	Responses: bodyscan.NewObject(append(
		fields(),
		placed("input", memberInput, readInput),
		placed("instructions", memberInstructions, readSize),
		placed("tools", memberTools, readSize),
		field("previous_response_id", readElsewhere),
		field("prompt", readElsewhere),
		limit("max_output_tokens"),
	)...),
	Messages: bodyscan.NewObject(append(
		fields(),
		placed("messages", memberMessages, readMessages),
		placed("system", memberSystem, readSystem),
		placed("tools", memberTools, readSize),
		placed("tool_choice", memberToolChoice, skip),
		placed("chat_template_kwargs", memberTemplateKwargs, skip),
		limit("max_tokens"),
	)...),
}

// fields are the members that all kinds have.
func fields() []bodyscan.Field[Request] {
	return []bodyscan.Field[Request]{
		placed("model", memberModel, readModel),
		placed("cache_salt", memberSalt, readSalt),
		field("stream", func(s *bodyscan.Scanner, r *Request) { r.Stream = readFlag(s) }),
		field("stream_options", readIfObject(streamOptions)),
		field("nvext", orNull(extension.Read)),
	}
}

func field(name string, read func(*bodyscan.Scanner, *Request)) bodyscan.Field[Request] {
	return bodyscan.Field[Request]{Name: name, Read: read}
}

// placed is a member whose place in the body is kept.
func placed(name string, m member, read func(*bodyscan.Scanner, *Request)) bodyscan.Field[Request] {
	return field(name, func(s *bodyscan.Scanner, r *Request) {
		s.Next()
		start := s.Offset()
		read(s, r)
		r.members[m] = span{start, s.Offset()}
	})
}

// limit is a bound of the generated tokens. The first one of a kind that is set counts;
// what is no such number is for the engine to refuse.
func limit(name string) bodyscan.Field[Request] {
	return field(name, func(s *bodyscan.Scanner, r *Request) {
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
	})
}

func skip(s *bodyscan.Scanner, _ *Request) { s.Skip() }

// readSize counts a value that becomes text of every prompt.
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

// readElsewhere reads a member that stands for a prompt, or a part of it, which the
// body does not have.
func readElsewhere(s *bodyscan.Scanner, r *Request) {
	if s.Next() != 'n' {
		r.Media = true
	}
	s.Skip()
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
		r.Salt = salt // nvext's goes before it
	}
}

// readFlag reads true; all else is as false, or for the engine to refuse.
func readFlag(s *bodyscan.Scanner) bool {
	if s.Next() == 't' {
		return s.Bool()
	}
	s.Skip()
	return false
}

// readIfObject reads an object of a shape; all else is for the engine to refuse.
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

// orNull reads a value that may be null, which is the same as none.
func orNull[T any](read func(*bodyscan.Scanner, *T)) func(*bodyscan.Scanner, *T) {
	return func(s *bodyscan.Scanner, v *T) {
		if !s.Null() {
			read(s, v)
		}
	}
}

// extension is nvext. Its members are for the gateway, so that wrong ones are faults.
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
