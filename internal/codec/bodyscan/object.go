package bodyscan

import (
	"fmt"
	"math/bits"
)

// Field is one member that an object may have.
type Field[T any] struct {
	Name string
	// Required makes an object without the member a fault of shape.
	Required bool
	// Read reads the member's value, exactly one, into the target.
	Read func(*Scanner, *T)
	// Alias is a second name of the member, "" for none. Either will do where the
	// member is required.
	Alias string
	// Again is used instead of Read for the second value if the object has both names. It must
	// fail if the two values differ.
	Again func(*Scanner, *T)
	// Late is set for an array that Read reads with AppendUint32sUnder. If the scanner has a Cache,
	// a long one is read after all other members of the object, so that its scope may be among
	// these. An object may have one such field.
	Late bool
}

const (
	// maxFields is the number of bits in an object's set of fields.
	maxFields = 64
	// isAlias is set in the index of an alias.
	isAlias = maxFields
)

// Object describes the objects that fill a T. It is immutable and safe for
// concurrent use.
type Object[T any] struct {
	fields   []Field[T]
	index    map[string]int
	required uint64
	strict   string // why a member that is not described is a fault; empty: it is none
}

// Strict makes members that are not described faults of class Unknown, for objects in which a
// misspelt member would change the meaning. It returns o, which is not in use yet.
func (o *Object[T]) Strict() *Object[T] {
	names := make([]string, len(o.fields))
	for i, f := range o.fields {
		names[i] = f.Name
	}
	o.strict = "unknown field, expected " + oneOf(names)
	return o
}

// NewObject returns the description of objects with the given fields. It panics if a name comes
// twice or there are more than 64 fields: fields are constants of the program.
func NewObject[T any](fields ...Field[T]) *Object[T] {
	if len(fields) > maxFields {
		panic(fmt.Sprintf("bodyscan: %d fields, at most %d are possible", len(fields), maxFields))
	}
	o := &Object[T]{fields: fields, index: make(map[string]int, len(fields))}
	for i, f := range fields {
		if _, ok := o.index[f.Name]; ok {
			panic("bodyscan: field " + f.Name + " is given twice")
		}
		o.index[f.Name] = i
		if f.Required {
			o.required |= 1 << i
		}
	}
	for i, f := range fields {
		if f.Alias == "" {
			continue
		}
		if _, ok := o.index[f.Alias]; ok {
			panic("bodyscan: field " + f.Alias + " is given twice")
		}
		o.index[f.Alias] = i | isAlias
	}
	return o
}

// Read reads the next value, which must be an object, into v. Members that are not described
// are skipped, unless the object is strict, but must be well formed; described ones may come once. Fields of v without a
// member in the text keep their value.
func (o *Object[T]) Read(s *Scanner, v *T) {
	c, ok := s.open(object, "an object")
	if !ok {
		return
	}
	var seen, aliased uint64
	var late *Field[T] // that was postponed
	var lateAt, lateEnd int
	for s.more(&c) {
		i, known := o.index[string(s.key())]
		switch {
		case s.err != nil:
			return
		case !known && o.strict != "":
			s.fail(Unknown, s.pos, o.strict)
			return
		case !known:
			s.Skip()
			continue
		}
		f, bit := &o.fields[i&^isAlias], uint64(1)<<(i&^isAlias)
		name, read, mine, other := f.Name, f.Read, &seen, &aliased
		if i&isAlias != 0 {
			name, mine, other = f.Alias, other, mine
		}
		if *other&bit != 0 {
			read = f.Again
		}
		if *mine&bit != 0 {
			s.failField(name, "duplicate field `")
			return
		}
		*mine |= bit
		if at := s.pos; f.Late {
			if end, ok := s.postpone(); ok {
				late, lateAt, lateEnd = f, at, end
				continue
			}
		}
		if read(s, v); s.err != nil {
			s.err.within(name)
			return
		}
	}
	if missing := o.required &^ (seen | aliased); missing != 0 && s.err == nil {
		s.failField(o.fields[bits.TrailingZeros64(missing)].Name, "missing field `")
		s.err.Missing = true
	}
	if late != nil && s.err == nil {
		end := s.pos
		s.pos, s.lateEnd = lateAt, lateEnd
		s.depth++ // as inside the object
		if late.Read(s, v); s.err != nil {
			s.err.within(late.Name)
			return
		}
		s.depth--
		s.pos, s.lateEnd = end, 0
	}
}

// failField sets a fault of the object just read, not of one of its values.
func (s *Scanner) failField(name, reason string) {
	s.Fail(reason + name + "`")
	s.err.Field = name
}

// Decode reads text, which must be one object and nothing else, into v.
func (o *Object[T]) Decode(s *Scanner, format Format, text []byte, v *T) error {
	s.Reset(format, text)
	o.Read(s, v)
	err := s.End()
	if err != nil && s.postponed { // there is a fault, but perhaps another one comes first
		defer s.UseCache(s.cache)
		s.UseCache(nil)
		return o.Decode(s, format, text, v)
	}
	return err
}

// Set returns a Read function for a member that may not be null.
func Set[T, V any](field func(*T) *V, read func(*Scanner) V) func(*Scanner, *T) {
	return func(s *Scanner, t *T) { *field(t) = read(s) }
}

// OrNull returns a Read function for a member whose null means the same as
// leaving it out: the field keeps its value.
func OrNull[T, V any](field func(*T) *V, read func(*Scanner) V) func(*Scanner, *T) {
	return func(s *Scanner, t *T) {
		if !s.Null() {
			*field(t) = read(s)
		}
	}
}

// Optional is OrNull for a field that is a pointer.
func Optional[T, V any](field func(*T) **V, read func(*Scanner) V) func(*Scanner, *T) {
	return func(s *Scanner, t *T) {
		if s.Null() {
			return
		}
		v := read(s)
		*field(t) = &v
	}
}
