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
	// Removed is a member that the service no longer takes.
	Removed
	// Unknown is a member that a strict object does not have.
	Unknown
)

// Error is the first fault of a text.
type Error struct {
	Class Class
	// Path names the faulty value, as in "pinned_worker.dp_rank" or
	// "token_ids[3]"; empty for the whole text.
	Path string
	// Field is the member of the outermost object in which the fault lies, also if that member
	// is missing or repeated; empty if the fault is in no described member.
	Field string
	// Missing reports whether a required member is not in the text.
	Missing bool
	// Reason says what is wrong. It never repeats a string of the text, which may hold a prompt.
	Reason string
	// Limit names the limit that the value exceeds; empty for other faults.
	Limit  string
	Format Format
	// Line and Column count from 1, columns in bytes. A msgpack body is one line.
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

// within adds an object's member to the path and sets Field. Readers return from the inside
// out, so the outermost object sets Field last.
func (e *Error) within(field string) {
	e.Field = field
	e.inside(field)
}

// inside puts the name of the enclosing member in front of the path. Paths are built only while
// readers return with a fault, so that reading valid text costs nothing for them.
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

// fail sets the fault unless there is an earlier one. at is its offset in the text.
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

// failSyntax sets the fault that the text ends at the scanner's position, or has another byte
// there than the grammar wants.
func (s *Scanner) failSyntax(want string) {
	if s.pos >= len(s.data) {
		s.fail(Syntax, len(s.data), "end of text, expected "+want)
		return
	}
	s.fail(Syntax, s.pos, "expected "+want)
}

// failType sets the fault that the next value is not of the wanted type. If the value is not
// even well formed, that is the fault.
func (s *Scanner) failType(want string) {
	k, at := s.kind(), s.pos
	switch k {
	case object, array: // its type is wrong already; it need not be read
	case noValue:
		s.failSyntax("a value")
		return
	default:
		s.Skip()
	}
	s.fail(Shape, at, "invalid type: "+k.String()+", expected "+want)
}
