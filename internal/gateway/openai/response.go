package openai

import (
	"bytes"
	"mime"
)

// Usage is what an engine says that a request has taken.
type Usage struct {
	Prompt, Completion uint64 // tokens
	Cached             uint64 // of Prompt, found in the engine's cache
	HasCached          bool   // the engine says how many were cached
}

// Response follows the body of an answer as it passes by in pieces, and keeps nothing
// of it: pieces that are cut elsewhere give the same. It is not safe for concurrent use.
type Response struct {
	format format
	json   walker
	event  event // what has been seen of the event, or of the whole text
	line   line

	bytes   bool // there was one
	started bool
	tokens  uint64
	// has says which numbers of the usage there were; the last ones count.
	has     [markDone + 1]bool
	numbers [markDone + 1]uint64
}

type format uint8

const (
	formatOpaque format = iota // nothing can be read
	formatJSON
	formatEvents // server-sent events
)

// event is what one server-sent event says.
type event struct {
	data   bool // it has a line of data
	output bool // it has generated text
	choice bool // it has a choice
}

// line is where in a line of an event stream the next byte stands.
type line struct {
	state   lineState
	matched int  // bytes of the field's name that were read
	empty   bool // the line has no byte so far
	afterCR bool // the last byte ended a line, and a line feed belongs to it
}

type lineState uint8

const (
	lineName  lineState = iota // in what may be "data:"
	lineSpace                  // behind it, where one space is dropped
	lineData
	lineOther // in a line that is passed over
)

// NewResponse returns a Response for the answer to a request of a kind with these
// headers.
func NewResponse(kind Kind, contentType, contentEncoding string) *Response {
	r := &Response{line: line{empty: true}}
	r.json.report = r.mark
	r.json.reset()
	media, _, _ := mime.ParseMediaType(contentType)
	switch {
	case kind == Other || contentEncoding != "" && contentEncoding != "identity":
	case media == "text/event-stream":
		r.format = formatEvents
	case media == "application/json":
		r.format = formatJSON
	}
	return r
}

// Streams reports whether the answer is a stream of events, from which the first token
// and their number can be told.
func (r *Response) Streams() bool { return r.format == formatEvents }

// Started reports whether a token was generated: in a stream of events once one has a
// choice, or a text of the answer; else once there is a byte.
func (r *Response) Started() bool {
	if r.format == formatEvents {
		return r.started
	}
	return r.bytes
}

// Tokens returns how many tokens were generated so far: as many as there were events
// with a text in them, or what the engine says if that is more.
func (r *Response) Tokens() uint64 { return max(r.tokens, r.numbers[markDone]) }

// Usage returns what the engine said of the request's tokens so far; ok: it said how many
// the prompt has.
func (r *Response) Usage() (u Usage, ok bool) {
	return Usage{
		// Anthropic's input_tokens are those behind what was cached or is cached now;
		// the other APIs have no such members.
		Prompt:     r.numbers[markPrompt] + r.numbers[markRead] + r.numbers[markWritten],
		Completion: r.numbers[markDone],
		Cached:     r.numbers[markCached] + r.numbers[markRead],
		HasCached:  r.has[markCached] || r.has[markRead],
	}, r.has[markPrompt]
}

// Write reads the next piece of the body.
func (r *Response) Write(piece []byte) {
	if len(piece) == 0 {
		return
	}
	r.bytes = true
	switch r.format {
	case formatJSON:
		r.json.walk(piece)
	case formatEvents:
		r.events(piece)
	}
}

// End says that the body is complete.
func (r *Response) End() {
	r.json.end()
	if r.format == formatEvents {
		r.endEvent()
	}
}

// mark takes what the walker finds.
func (r *Response) mark(m mark, number uint64) {
	switch m {
	case markChoice:
		r.event.choice = true
	case markOutput:
		r.event.output = true
	default:
		r.has[m], r.numbers[m] = true, number
	}
}

// events reads a piece of an event stream, byte by byte only where lines begin.
func (r *Response) events(piece []byte) {
	for len(piece) > 0 {
		c := piece[0]
		if r.line.afterCR {
			if r.line.afterCR = false; c == '\n' {
				piece = piece[1:]
				continue
			}
		}
		if c == '\n' || c == '\r' {
			r.endLine(c)
			piece = piece[1:]
			continue
		}
		r.line.empty = false
		switch r.line.state {
		case lineName:
			const name = "data:"
			if r.line.state = lineOther; c == name[r.line.matched] {
				r.line.state = lineName
				if r.line.matched++; r.line.matched == len(name) {
					r.line.state = lineSpace
					r.event.data = true
				}
			}
			piece = piece[1:]
		case lineSpace:
			if r.line.state = lineData; c == ' ' {
				piece = piece[1:]
			}
		default:
			n := bytes.IndexAny(piece, "\r\n")
			if n < 0 {
				n = len(piece)
			}
			if r.line.state == lineData {
				r.json.walk(piece[:n])
			}
			piece = piece[n:]
		}
	}
}

var newline = []byte{'\n'}

// endLine ends a line; an empty one ends the event. Lines of data are one text.
func (r *Response) endLine(c byte) {
	if r.line.empty {
		r.endEvent()
	} else if r.line.state == lineData {
		r.json.walk(newline)
	}
	r.line = line{empty: true, afterCR: c == '\r'}
}

func (r *Response) endEvent() {
	if !r.event.data {
		return
	}
	r.json.end()
	r.json.reset()
	r.started = r.started || r.event.choice || r.event.output
	if r.event.output {
		r.tokens++
	}
	r.event = event{}
}
