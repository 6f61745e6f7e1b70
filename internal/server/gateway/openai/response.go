package openai

import (
	"bytes"
	"mime"
)

// Usage is an engine's own count of a request's tokens.
type Usage struct {
	Prompt, Completion uint64 // tokens
	Cached             uint64 // the tokens of Prompt that were in the engine's cache
	HasCached          bool   // the engine reported Cached
}

// Response parses the body of an answer while its pieces pass by, and keeps none of them. The
// result does not depend on where the pieces are cut. It is not safe for concurrent use.
type Response struct {
	format format
	json   walker
	event  event // what has been found in the current event, or in the whole text of formatJSON
	line   line

	bytes   bool // the body has at least one byte
	bom     int  // bytes of a byte order mark that have been read; its length where there is none
	started bool
	tokens  uint64
	// has and numbers are indexed by mark: the numbers of the usage that have come, each with
	// its last value.
	has     [markGenerated + 1]bool
	numbers [markGenerated + 1]uint64
	ids     []string // that TakeIDs has not returned yet
}

// maxIDs bounds the ids that are kept between two calls of TakeIDs.
const maxIDs = 1000

type format uint8

const (
	formatOpaque format = iota // compressed, or of another type: not parsed
	formatJSON
	formatEvents // server-sent events
	formatUnsaid // as the first byte says
)

// formatOf returns the format of a body without a type by its first byte.
func formatOf(first byte) format {
	switch first {
	case '{':
		return formatJSON
	case ':', 'd', 'e', 'i', 'r': // a comment, or a field: data, event, id, retry
		return formatEvents
	}
	return formatOpaque
}

// event is what has been found in one server-sent event.
type event struct {
	data    bool   // it has a line of data
	known   bool   // it is one of these APIs
	outputs uint64 // choices with generated text, 1 for an event without choices
	output  bool   // the choice that is read has some
	choice  bool   // it has a choice
}

// line is the position of the next byte within a line of an event stream.
type line struct {
	state   lineState
	matched int  // bytes of "data:" that have matched so far
	empty   bool // the line has no byte so far
	afterCR bool // the last byte ended a line, and a line feed belongs to it
}

type lineState uint8

const (
	lineName  lineState = iota // in a field's name that may be "data:"
	lineSpace                  // behind "data:", where one space is dropped
	lineData
	lineOther // in a line that is skipped
)

// NewResponse returns a Response for an answer. contentType and contentEncoding are its headers;
// an answer that is compressed or of another type is not parsed. Without a type its text tells what
// it is.
func NewResponse(contentType, contentEncoding string) *Response {
	r := &Response{line: line{empty: true}}
	r.json.report, r.json.root = r.mark, root
	r.json.reset()
	media, _, _ := mime.ParseMediaType(contentType)
	switch {
	case contentEncoding != "" && contentEncoding != "identity":
	case media == "text/event-stream":
		r.format = formatEvents
	case media == "application/json":
		r.format = formatJSON
	case contentType == "":
		r.format = formatUnsaid
	}
	return r
}

// ReadIDs makes Write read the ids of what the engine keeps, see TakeIDs. It must be called before Write.
func (r *Response) ReadIDs() {
	r.json.root = storedRoot
	r.json.reset()
}

// TakeIDs returns the ids that have come since it was last called.
func (r *Response) TakeIDs() (ids []string) {
	ids, r.ids = r.ids, nil
	return ids
}

// Streams reports whether the answer is a stream of events, so that the first token and the
// number of tokens can be read from it.
func (r *Response) Streams() bool { return r.format == formatEvents }

// Started reports whether a token was generated. In a stream of events that is the first event
// with a choice, with a text of the answer, or of another API; otherwise the first byte.
func (r *Response) Started() bool {
	if r.format == formatEvents {
		return r.started
	}
	return r.bytes
}

// Tokens returns how many tokens were generated so far: the number of texts in events, one for
// each choice, or the engine's own count if that is higher.
func (r *Response) Tokens() uint64 { return max(r.tokens, r.numbers[markGenerated]) }

// Usage returns the engine's counts so far. ok reports whether the prompt's tokens are among
// them.
func (r *Response) Usage() (u Usage, ok bool) {
	return Usage{
		// Anthropic's input_tokens do not include the tokens read from or written to the cache.
		// The other APIs do not have the two numbers.
		Prompt:     r.numbers[markPrompt] + r.numbers[markRead] + r.numbers[markWritten],
		Completion: r.numbers[markGenerated],
		Cached:     r.numbers[markCached] + r.numbers[markRead],
		HasCached:  r.has[markCached] || r.has[markRead],
	}, r.has[markPrompt]
}

// byteOrderMark may stand before the text, and has no meaning.
const byteOrderMark = "\xef\xbb\xbf"

// Write parses the next piece of the body.
func (r *Response) Write(piece []byte) {
	if len(piece) == 0 {
		return
	}
	r.bytes = true
	for len(piece) > 0 && r.bom < len(byteOrderMark) {
		if piece[0] != byteOrderMark[r.bom] {
			r.bom = len(byteOrderMark)
			break
		}
		piece, r.bom = piece[1:], r.bom+1
	}
	if r.format == formatUnsaid && len(piece) > 0 {
		r.format = formatOf(piece[0])
	}
	switch r.format {
	case formatJSON:
		r.json.walk(piece)
	case formatEvents:
		r.events(piece)
	}
}

// End parses what is left when the body is complete.
func (r *Response) End() {
	r.json.end()
	if r.format == formatEvents {
		r.endEvent()
	}
}

// mark stores what the walker finds. number is used for marks of the usage only.
func (r *Response) mark(m mark, number uint64) {
	switch m {
	case markChoice:
		r.event.choice, r.event.output = true, false
	case markOutput:
		if !r.event.output {
			r.event.outputs++
		}
		r.event.output = true
	case markKnown:
		r.event.known = true
	case markID:
		if id := r.json.id; len(id) > 0 && len(id) <= MaxID && len(r.ids) < maxIDs && !bytes.ContainsRune(id, '\\') {
			r.ids = append(r.ids, string(id))
		}
	default:
		r.has[m], r.numbers[m] = true, number
	}
}

// events parses a piece of an event stream. It goes byte by byte only where lines begin.
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

// endLine ends a line. An empty line ends the event; the data lines of an event are one text.
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
	r.started = r.started || r.event.choice || r.event.outputs > 0 || !r.event.known
	r.tokens += r.event.outputs
	r.event = event{}
}
