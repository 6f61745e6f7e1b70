package yamlread

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Place is where a value stands in its file. Decode sets a field of this type to the place of its struct.
type Place struct {
	Path string
	Node *yaml.Node
}

// Checker is a type whose values have bounds. Check is called after a value was read without a fault;
// its error is a fault of the value.
type Checker interface{ Check() error }

// Decode reads the value at path into the variable that to points to. Its type says what is wanted:
//
//   - a struct: a mapping of the keys that the tags of its exported fields name, `yaml:"name"`; those
//     of embedded structs belong to it. Any other key is a fault, and so is a missing one with the
//     option "required". With the option "null" a null is as good as no key;
//   - a pointer: null, which leaves it as it is, or what it points to, which is created if it is nil;
//   - a slice: a list. A map: a mapping;
//   - a string, bool, uint32, uint64, float32 or float64: a scalar of just that type. Numbers are
//     finite, whole ones have no leading zeros, and as keys of a map they may stand in quotes;
//   - an [encoding.TextUnmarshaler]: the text of any scalar but null, as it is written;
//   - a *[yaml.Node]: any value, which is not read.
//
// The values of a [Checker] are checked. Every fault is recorded, and a faulty value counts as given:
// pointers to it are not nil. Decode reports whether there was none.
func (r *Reader) Decode(path string, n *yaml.Node, to any) bool {
	before := r.Count()
	r.decode(path, n, reflect.ValueOf(to).Elem())
	return r.Count() == before
}

func (r *Reader) decode(path string, n *yaml.Node, v reflect.Value) {
	n = r.resolve(n)
	before := r.Count()
	to := v.Addr().Interface()
	switch to := to.(type) {
	case **yaml.Node:
		*to = n
		return
	case encoding.TextUnmarshaler:
		var err error
		if n.Kind != yaml.ScalarNode || IsNull(n) {
			err = errText
		} else {
			err = to.UnmarshalText([]byte(n.Value))
		}
		if err != nil {
			r.Fault(path, n, err)
		}
	default:
		switch v.Kind() {
		case reflect.Pointer:
			if IsNull(n) {
				return
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			r.decode(path, n, v.Elem())
			return // checked there
		case reflect.Struct:
			r.decodeStruct(path, n, v)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 0, len(n.Content)))
			for path, item := range r.List(path, n) {
				one := reflect.New(v.Type().Elem()).Elem()
				r.decode(path, item, one)
				v.Set(reflect.Append(v, one))
			}
		case reflect.Map:
			r.decodeMap(path, n, v)
		default:
			if err := decodeScalar(n, v); err != nil {
				r.Fault(path, n, err)
			}
		}
	}
	if c, is := to.(Checker); is && r.Count() == before {
		if err := c.Check(); err != nil {
			r.Fault(path, n, err)
		}
	}
}

func (r *Reader) decodeMap(path string, n *yaml.Node, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	for key, value := range r.Pairs(path, n) {
		name, node := reflect.New(v.Type().Key()).Elem(), *key.Node
		if name.CanUint() {
			node.Tag = "!!int" // in JSON keys are strings
		}
		before := r.Count()
		r.decode(key.Path, &node, name)
		if v.MapIndex(name).IsValid() && r.Count() == before { // 1 and 0x1
			r.Fault(key.Path, key.Node, errKeyTwice)
		}
		one := reflect.New(v.Type().Elem()).Elem()
		r.decode(key.Path, value, one)
		v.SetMapIndex(name, one)
	}
}

// member is a field of a struct that a key gives.
type member struct {
	name           string
	value          reflect.Value
	null, required bool // options of its tag
}

// members returns those of a struct in the order of their declaration, and sets its Place.
func members(v reflect.Value, at Place) (all []member) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case field.Type == reflect.TypeFor[Place]():
			v.Field(i).Set(reflect.ValueOf(at))
		case name != "":
			all = append(all, member{name, v.Field(i), strings.Contains(options, "null"), strings.Contains(options, "required")})
		case field.Anonymous && field.Type.Kind() == reflect.Struct:
			all = append(all, members(v.Field(i), at)...)
		}
	}
	return all
}

func (r *Reader) decodeStruct(path string, n *yaml.Node, v reflect.Value) {
	known := members(v, Place{path, n})
	missing := slices.DeleteFunc(slices.Clone(known), func(m member) bool { return !m.required || n.Kind != yaml.MappingNode })
	for key, value := range r.Pairs(path, n) {
		named := func(m member) bool { return m.name == key.Name }
		missing = slices.DeleteFunc(missing, named)
		switch i := slices.IndexFunc(known, named); {
		case i < 0:
			r.Fault(key.Path, key.Node, unknownField(key.Name, known))
		case !known[i].null || !IsNull(value):
			r.decode(key.Path, value, known[i].value)
		}
	}
	for _, m := range missing {
		r.Fault(Join(path, m.name), n, errMissing)
	}
}

// unknownField returns the fault of a key that a struct does not have, in the words of the HTTP API.
func unknownField(name string, known []member) error {
	names := make([]string, len(known))
	for i, m := range known {
		names[i] = "`" + m.name + "`"
	}
	expected := "there are no fields"
	switch len(names) {
	case 0:
	case 1:
		expected = "expected " + names[0]
	default:
		expected = "expected one of " + strings.Join(names, ", ")
	}
	return fmt.Errorf("unknown field `%s`, %s", clip(name), expected)
}

var (
	errText   = errors.New("want a text")
	errString = errors.New("want a string; put numbers, dates and words like true in quotes")
	errBool   = errors.New("want true or false")
	errNumber = errors.New("want a finite number")
	errWhole  = map[reflect.Kind]error{
		reflect.Uint32: fmt.Errorf("want a whole number, at most %d", uint32(math.MaxUint32)),
		reflect.Uint64: fmt.Errorf("want a whole number, at most %d", uint64(math.MaxUint64)),
	}
)

// decodeScalar reads a string, a boolean or a number; the error says what is wanted.
func decodeScalar(n *yaml.Node, v reflect.Value) error {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode {
		tag = ""
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(n.Value)
		if tag != "!!str" {
			return errString
		}
	case reflect.Bool:
		v.SetBool(strings.EqualFold(n.Value, "true"))
		if tag != "!!bool" {
			return errBool
		}
	case reflect.Uint32, reflect.Uint64:
		digits := strings.TrimPrefix(n.Value, "+")
		octal := len(digits) > 1 && digits[0] == '0' && '0' <= digits[1] && digits[1] <= '9'
		whole, err := strconv.ParseUint(digits, 0, v.Type().Bits())
		if tag != "!!int" || octal || err != nil {
			return errWhole[v.Kind()]
		}
		v.SetUint(whole)
	case reflect.Float32, reflect.Float64:
		err := n.Decode(v.Addr().Interface())
		if tag != "!!int" && tag != "!!float" || err != nil || math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			return errNumber
		}
	default:
		panic("yamlread: no value of a file is a " + v.Type().String())
	}
	return nil
}
