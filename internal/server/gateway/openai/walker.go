package openai

import "strings"

// walker parses a JSON text that comes in pieces, cut anywhere, and reports the values at a few
// paths. It keeps only a member's name and a number, so that the text may be of any length. It
// is lenient: once a text is not JSON it just reports nothing further.
type walker struct {
	report func(m mark, number uint64)
	root   *pathNode // of all paths

	state   walkState
	escaped bool // in a string: the last byte was a backslash
	filled  bool // in a string: it is not empty
	depth   int  // of open arrays and objects
	objects [maxWalkDepth/64 + 1]uint64
	// nodes has, by depth, the path of each open container, nil if nothing is looked for in it.
	// at is the path of the next value.
	nodes  [maxPath + 1]*pathNode
	at     *pathNode
	name   [maxPathName]byte
	length int // of name; above maxPathName: the name is too long to be looked for
	number uint64
	exact  bool   // number has not overflowed
	id     []byte // text at a path of kindID; longer than MaxID: too long
}

// maxWalkDepth is how deep arrays and objects may nest.
const maxWalkDepth = 127

type walkState uint8

const (
	inValue   walkState = iota // before a value
	inName                     // in a member's name
	inText                     // in a string
	inNumber                   // in an unsigned number
	inLiteral                  // in true, false, null or another number
	beforeMember
	beforeColon
	afterValue
	broken // the text is not JSON
)

// mark is the meaning of the value at a path.
type mark uint8

const (
	markNone      mark = iota
	markChoice         // an object in choices; engines send the first one with the first output
	markOutput         // a text, or an object of a tool call, that is output
	markPrompt         // tokens of the prompt
	markCached         // tokens of the prompt that were cached
	markRead           // cached tokens that markPrompt does not include (Anthropic)
	markWritten        // tokens written to the cache that markPrompt does not include (Anthropic)
	markGenerated      // tokens generated
	markKnown          // a member, or [DONE], that events of these APIs have
	markID             // the id of something that the engine keeps
)

// pathNode is a path from the root by member names. The elements of an array have the array's
// path.
type pathNode struct {
	mark  mark
	kind  pathKind
	known bool // markKnown is told at its name
	next  map[string]*pathNode
}

// pathKind is the type that a value must have to be reported.
type pathKind uint8

const (
	kindNumber pathKind = iota
	kindText            // strings that are not empty
	kindObject
	kindID // strings without escapes, which are kept
)

const (
	maxPath     = 5  // names in a path
	maxPathName = 32 // bytes of a name in a path
)

// root has the paths of all APIs in one tree. No path means different things in two APIs. storedRoot has
// those of ids too.
var root, storedRoot = newPaths(false), newPaths(true)

func newPaths(ids bool) *pathNode {
	root := &pathNode{}
	add := func(path string, m mark, kind pathKind) {
		n := root
		for name := range strings.SplitSeq(path, ".") {
			if n.next == nil {
				n.next = make(map[string]*pathNode)
			}
			if n.next[name] == nil {
				n.next[name] = &pathNode{}
			}
			n = n.next[name]
		}
		n.mark, n.kind = m, kind
	}
	add("choices", markChoice, kindObject)
	add("choices.text", markOutput, kindText)
	for _, name := range []string{"content", "reasoning", "reasoning_content", "refusal"} {
		add("choices.delta."+name, markOutput, kindText)
	}
	add("choices.delta.tool_calls", markOutput, kindObject)
	add("choices.token_ids", markOutput, kindNumber)       // of vLLM's generate
	add("meta_info.prompt_tokens", markPrompt, kindNumber) // of SGLang's
	add("meta_info.cached_tokens", markCached, kindNumber)
	add("meta_info.completion_tokens", markGenerated, kindNumber)
	add("delta", markOutput, kindText) // of events of a response
	for _, name := range []string{"text", "thinking", "partial_json"} {
		add("delta."+name, markOutput, kindText) // of Anthropic's events
	}
	for _, usage := range []string{"usage.", "response.usage.", "message.usage."} {
		add(usage+"prompt_tokens", markPrompt, kindNumber)
		add(usage+"input_tokens", markPrompt, kindNumber)
		add(usage+"prompt_tokens_details.cached_tokens", markCached, kindNumber)
		add(usage+"input_tokens_details.cached_tokens", markCached, kindNumber)
		add(usage+"cache_read_input_tokens", markRead, kindNumber)
		add(usage+"cache_creation_input_tokens", markWritten, kindNumber)
		add(usage+"completion_tokens", markGenerated, kindNumber)
		add(usage+"output_tokens", markGenerated, kindNumber)
	}
	if ids { // of a response and its events, of files and batches, and of lists of these
		for _, path := range []string{"id", "response.id", "output_file_id", "error_file_id"} {
			add(path, markID, kindID)
			add("data."+path, markID, kindID)
		}
	}
	for _, name := range []string{"choices", "type", "error"} {
		if root.next[name] == nil {
			root.next[name] = &pathNode{}
		}
		root.next[name].known = true
	}
	return root
}

// reset makes the walker ready for another text.
func (w *walker) reset() {
	*w = walker{report: w.report, root: w.root, at: w.root, id: w.id[:0]}
}

// walk reads a piece of the text.
func (w *walker) walk(text []byte) {
	for i := 0; i < len(text); {
		switch c := text[i]; w.state {
		case inText:
			i += w.text(text[i:])
			continue
		case inName:
			i += w.memberName(text[i:])
			continue
		case inNumber:
			if d := c - '0'; d < 10 {
				if w.number > (1<<63)/10 {
					w.exact = false
				}
				w.number = w.number*10 + uint64(d)
				break
			}
			if c == '.' || c == 'e' || c == 'E' {
				w.state = inLiteral
				break
			}
			if w.exact {
				w.reportAs(kindNumber)
			}
			w.state = afterValue
			continue // the byte behind the number is read again
		case inLiteral:
			if c == ',' || c == ']' || c == '}' || isSpace(c) {
				w.state = afterValue
				continue
			}
		case broken:
			return
		default:
			if !isSpace(c) {
				w.between(c)
			}
		}
		i++
	}
}

// end handles the end of the text, which reports a number that stands there.
func (w *walker) end() {
	if w.state == inNumber && w.exact {
		w.reportAs(kindNumber)
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func (w *walker) reportAs(kind pathKind) {
	if w.at != nil && w.at.mark != markNone && w.at.kind == kind {
		w.report(w.at.mark, w.number)
	}
}

// text reads a part of a string and returns how many bytes it has read.
func (w *walker) text(text []byte) int {
	if w.escaped {
		w.escaped = false
		return 1
	}
	for i, c := range text {
		switch c {
		case '\\':
			w.filled, w.escaped = true, true
			w.keepID(text[:i+1]) // no id has an escape
			return i + 1
		case '"':
			if w.filled = w.filled || i > 0; w.filled {
				w.reportAs(kindText)
			}
			w.keepID(text[:i])
			w.reportAs(kindID)
			w.state = afterValue
			return i + 1
		}
	}
	w.filled = w.filled || len(text) > 0
	w.keepID(text)
	return len(text)
}

// keepID keeps a part of a string where an id is looked for.
func (w *walker) keepID(part []byte) {
	if w.at != nil && w.at.kind == kindID && len(w.id) <= MaxID {
		w.id = append(w.id, part[:min(len(part), MaxID+1)]...)
	}
}

// memberName reads a part of a member's name and returns how many bytes it has read. A name
// with an escape is not looked for.
func (w *walker) memberName(text []byte) int {
	if w.escaped {
		w.escaped = false
		return 1
	}
	for i, c := range text {
		switch c {
		case '\\':
			w.escaped, w.length = true, maxPathName+1
			return i + 1
		case '"':
			w.keepName(text[:i])
			w.at = nil
			if parent := w.container(); parent != nil && w.length <= maxPathName {
				w.at = parent.next[string(w.name[:w.length])]
			}
			if w.at != nil && w.at.known {
				w.report(markKnown, 0)
			}
			w.state = beforeColon
			return i + 1
		}
	}
	w.keepName(text)
	return len(text)
}

// keepName appends to the name, if members of the current container are looked for.
func (w *walker) keepName(part []byte) {
	if w.length+len(part) > maxPathName {
		w.length = maxPathName + 1
	} else if w.container() != nil {
		w.length += copy(w.name[w.length:], part)
	}
}

// container returns the path of the innermost array or object; nil if nothing is looked for in
// it.
func (w *walker) container() *pathNode {
	if w.depth == 0 || w.depth > maxPath {
		return nil
	}
	return w.nodes[w.depth]
}

// between handles a byte between names and values.
func (w *walker) between(c byte) {
	switch {
	case w.state == beforeMember && c == '"':
		w.state, w.length = inName, 0
	case w.state == beforeColon && c == ':':
		w.state = inValue
	case w.state == afterValue && c == ',' && w.depth > 0:
		if w.state = beforeMember; !w.inObject() {
			w.state, w.at = inValue, w.container()
		}
	case c == '}' && w.depth > 0 && w.inObject() && w.state != inValue && w.state != beforeColon,
		c == ']' && w.depth > 0 && !w.inObject():
		w.depth--
		w.state = afterValue
	case w.state == inValue:
		w.value(c)
	default:
		w.state = broken
	}
}

// value handles the first byte of a value.
func (w *walker) value(c byte) {
	switch {
	case c == '"':
		w.state, w.filled, w.id = inText, false, w.id[:0]
	case c == '{' || c == '[':
		w.open(c == '{')
	case c-'0' < 10:
		w.state, w.number, w.exact = inNumber, uint64(c-'0'), true
	case c == '-' || c == 't' || c == 'f' || c == 'n':
		w.state = inLiteral
	default:
		w.state = broken
	}
}

func (w *walker) open(object bool) {
	if w.depth == maxWalkDepth {
		w.state = broken
		return
	}
	w.depth++
	word, bit := w.depth/64, uint64(1)<<(w.depth%64)
	w.objects[word] &^= bit
	if w.depth <= maxPath {
		w.nodes[w.depth] = w.at
	}
	if object {
		w.objects[word] |= bit
		w.state = beforeMember
		w.reportAs(kindObject)
	} else if w.depth == 1 {
		w.report(markKnown, 0) // [DONE]
	}
}

func (w *walker) inObject() bool { return w.objects[w.depth/64]&(1<<(w.depth%64)) != 0 }
