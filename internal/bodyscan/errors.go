package bodyscan

import (
	"bytes"
	"strconv"
)

// Class is the kind of a fault.
type Class uint8

// The classes of faults.
const (
	// Syntax is text that is not one value in its format.
	Syntax Class = iota
	// Shape is a value that does not fit the type asked for: wrong type, number
	// out of range, missing or repeated member, null where none may be.
	Shape
)

// Error is the first fault of a text.
type Error struct {
	Class Class
	// Path names the faulty value, as in "pinned_worker.dp_rank" or
	// "token_ids[3]"; empty for the whole text.
	Path string
	// Field is the described member of the outermost object in which the fault
	// lies, also where it is missing or repeated; empty if there is none.
	Field string
	// Missing reports whether a required member is not in the text.
	Missing bool
	// Reason never repeats a string of the text: a body may hold a prompt.
	Reason string
	// Limit names the limit that the value exceeds; empty for other faults.
	Limit  string
	Format Format
	// Line and Column count from 1; columns are bytes. In msgpack all is one line.
	Line, Column int
}

// Error gives path, reason and position on one line.
func (e *Error) Error() string {
	b := make([]byte, 0, len(e.Path)+len(e.Reason)+32)
	if e.Path != "" {
		b = append(b, e.Path...)
		b = append(b, ": "...)
	}
	b = append(b, e.Reason...)
	if e.Format == Msgpack {
		b = append(b, " at byte "...)
	} else {
		b = append(b, " at line "...)
		b = strconv.AppendInt(b, int64(e.Line), 10)
		b = append(b, " column "...)
	}
	return string(strconv.AppendInt(b, int64(e.Column), 10))
}

// within names the member of an object in which the fault lies. Outer objects
// come later and prevail.
func (e *Error) within(field string) {
	e.Field = field
	e.inside(field)
}

// inside puts the name of the enclosing member in front of the path. Paths are
// built while the readers return, so that reading costs nothing for them.
func (e *Error) inside(name string) {
	switch {
	case e.Path == "":
		e.Path = name
	case e.Path[0] == '[':
		e.Path = name + e.Path
	default:
		e.Path = name + "." + e.Path
	}
}

// insideElement is inside for an array's element.
func (e *Error) insideElement(i int) {
	e.inside("[" + strconv.Itoa(i) + "]")
}

// fail keeps the first fault. at is its offset in the text.
func (s *Scanner) fail(c Class, at int, reason string) {
	if s.err != nil {
		return
	}
	s.err = &Error{Class: c, Reason: reason, Format: s.format, Line: 1, Column: at + 1}
	if s.format == JSON {
		before := s.data[:at]
		s.err.Line += bytes.Count(before, []byte{'\n'})
		s.err.Column = at - bytes.LastIndexByte(before, '\n')
	}
}

// failSyntax reports that the byte at the scanner's position, or the end of the
// text, is not what the grammar wants there.
func (s *Scanner) failSyntax(want string) {
	if s.pos >= len(s.data) {
		s.fail(Syntax, len(s.data), "end of text, expected "+want)
		return
	}
	s.fail(Syntax, s.pos, "expected "+want)
}

// failType reports that the next value is not of the wanted type. A value that
// is not well formed either is a fault of syntax.
func (s *Scanner) failType(want string) {
	k, at := s.kind(), s.pos
	switch k {
	case object, array: // not read: the start already is of the wrong type
	case noValue:
		s.failSyntax("a value")
		return
	default:
		s.Skip()
	}
	s.fail(Shape, at, "invalid type: "+k.String()+", expected "+want)
}
