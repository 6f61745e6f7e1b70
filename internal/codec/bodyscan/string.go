package bodyscan

import (
	"encoding/binary"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// String reads a string.
func (s *Scanner) String() string { return string(s.Text()) }

// Variant reads a string that must be one of names, of which there must be at least one. As in
// serde_json, the contract's parser, a value that is no string is a fault of syntax, not of shape.
func (s *Scanner) Variant(names ...string) string {
	if s.err != nil {
		return ""
	}
	if s.kind() != text {
		s.failSyntax("a value")
		return ""
	}
	got := s.Text()
	for _, name := range names {
		if string(got) == name {
			return name
		}
	}
	last := len(names) - 1
	expected := "`" + names[last] + "`"
	if last > 0 {
		expected = "`" + strings.Join(names[:last], "`, `") + "` or " + expected
	}
	s.Fail("unknown variant, expected " + expected)
	return ""
}

// IsText reports whether the next value is a string.
func (s *Scanner) IsText() bool { return s.err == nil && s.kind() == text }

// Text reads a string without copying it, unless it has JSON escapes. The bytes are valid until
// the next string is read.
func (s *Scanner) Text() []byte {
	if s.err != nil {
		return nil
	}
	if s.kind() != text {
		s.failType("a string")
		return nil
	}
	if s.format == Msgpack {
		return s.packedText()
	}
	start := s.pos + 1
	ascii := true
	for i := start; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			return s.checked(s.data[start:i], start, ascii)
		case c == '\\':
			return s.escaped(start, i)
		case c < ' ':
			s.pos = i
			s.fail(Syntax, i, "control character in a string")
			return nil
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	s.pos = len(s.data)
	s.failSyntax("the end of a string")
	return nil
}

// skipText skips a string without keeping its decoded escapes: a text that is not used
// may be of any length.
func (s *Scanner) skipText() {
	if s.format == Msgpack {
		s.packedText()
		return
	}
	start := s.pos + 1
	ascii := true
	for i := start; i < len(s.data); i++ {
		for i+8 < len(s.data) && plain(binary.LittleEndian.Uint64(s.data[i:])) {
			i += 8
		}
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			s.checked(s.data[start:i], start, ascii)
			return
		case c == '\\':
			s.pos, s.text = i+1, s.text[:0]
			if s.escape(); s.err != nil {
				return
			}
			i = s.pos - 1
		case c < ' ':
			s.pos = i
			s.fail(Syntax, i, "control character in a string")
			return
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	s.pos = len(s.data)
	s.failSyntax("the end of a string")
}

// plain reports whether eight bytes of a string are ASCII without quotes, backslashes and
// control characters.
func plain(word uint64) bool {
	const low, high = 0x0101010101010101, 0x8080808080808080
	quote, escape := word^'"'*low, word^'\\'*low // bytes that are searched for become 0
	found := (quote-low)&^quote | (escape-low)&^escape | (word-' '*low)&^word | word
	return found&high == 0
}

func (s *Scanner) checked(got []byte, at int, ascii bool) []byte {
	if !ascii && !utf8.Valid(got) {
		s.fail(Syntax, at, "invalid UTF-8 in a string")
		return nil
	}
	return got
}

// escaped is Text for a string whose first escape is at first.
func (s *Scanner) escaped(start, first int) []byte {
	s.text = append(s.text[:0], s.data[start:first]...)
	s.pos = first
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return s.checked(s.text, start, false)
		case c == '\\':
			s.pos++
			if s.escape(); s.err != nil {
				return nil
			}
		case c < ' ':
			s.fail(Syntax, s.pos, "control character in a string")
			return nil
		default:
			s.text = append(s.text, c)
			s.pos++
		}
	}
	s.failSyntax("the end of a string")
	return nil
}

// unescaped maps the letter of a short escape to its byte.
var unescaped = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// escape decodes what follows a backslash and appends it to s.text.
func (s *Scanner) escape() {
	if s.pos >= len(s.data) {
		s.failSyntax("the end of a string")
		return
	}
	c := s.data[s.pos]
	if b := unescaped[c]; b != 0 {
		s.text = append(s.text, b)
		s.pos++
		return
	}
	if c != 'u' {
		s.fail(Syntax, s.pos, "invalid escape")
		return
	}
	at := s.pos
	r, ok := s.hex4()
	if !ok {
		return
	}
	if utf16.IsSurrogate(r) {
		r = s.surrogatePair(r, at)
	}
	if s.err == nil {
		s.text = utf8.AppendRune(s.text, r)
	}
}

func (s *Scanner) surrogatePair(high rune, at int) rune {
	if s.pos+1 < len(s.data) && s.data[s.pos] == '\\' && s.data[s.pos+1] == 'u' {
		s.pos++
		low, ok := s.hex4()
		if !ok {
			return 0
		}
		if r := utf16.DecodeRune(high, low); r != utf8.RuneError {
			return r
		}
	}
	s.fail(Syntax, at, "lone surrogate in a string")
	return 0
}

// hex4 reads the u of an escape and its four digits.
func (s *Scanner) hex4() (rune, bool) {
	s.pos++
	if len(s.data)-s.pos < 4 {
		s.pos = len(s.data)
		s.failSyntax("the end of a string")
		return 0, false
	}
	var r rune
	for _, c := range s.data[s.pos : s.pos+4] {
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			s.fail(Syntax, s.pos, "invalid escape")
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	s.pos += 4
	return r, true
}
