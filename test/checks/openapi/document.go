package openapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/api"
)

// object is a mapping of the document.
type object = map[string]any

// operation is one method of one path.
type operation struct {
	id        string
	path      []string // segments of the template
	pointer   pointer
	responses object
	body      object // requestBody, nil if none is described
}

// pointer is a JSON pointer into the document, in parts.
type pointer []string

func (p pointer) at(parts ...string) pointer { return append(slices.Clip(p), parts...) }

// fragment renders the pointer as the fragment of a URL.
func (p pointer) fragment() string {
	escape := strings.NewReplacer("~", "~0", "/", "~1", "%", "%25", "{", "%7B", "}", "%7D")
	var b strings.Builder
	b.WriteByte('#')
	for _, part := range p {
		b.WriteByte('/')
		b.WriteString(escape.Replace(part))
	}
	return b.String()
}

// document is a parsed description.
type document struct {
	text       []byte // as JSON
	root       object
	operations map[string][]operation // by method
}

func parse(contract string) (*document, error) {
	text := api.Document(contract)
	if text == nil {
		return nil, fmt.Errorf("there is no contract %q", contract)
	}
	var root object
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	asJSON, err := json.Marshal(root) // integers of 64 bits stay what they are
	if err != nil {
		return nil, err
	}
	d := &document{text: asJSON, root: root, operations: map[string][]operation{}}
	for path, item := range d.member(root, "paths") {
		for method, op := range item.(object) {
			if op, ok := op.(object); ok { // the path's own parameters are a list
				d.add(strings.ToUpper(method), path, method, op)
			}
		}
	}
	return d, nil
}

func (d *document) add(method, path, key string, op object) {
	at := pointer{"paths", path, key}
	id, _ := op["operationId"].(string)
	d.operations[method] = append(d.operations[method], operation{
		id: id, path: strings.Split(path, "/"), pointer: at, responses: d.member(op, "responses"), body: d.member(op, "requestBody"),
	})
}

// member returns an object inside of another one, nil if it is not there.
func (d *document) member(of object, name string) object {
	m, _ := of[name].(object)
	return m
}

// resolve follows a reference; at is where the object is found in the end.
func (d *document) resolve(o object, at pointer) (object, pointer) {
	for {
		ref, ok := o["$ref"].(string)
		if !ok {
			return o, at
		}
		at = strings.Split(strings.TrimPrefix(ref, "#/"), "/")
		o = d.root
		for _, part := range at {
			o = d.member(o, part)
		}
	}
}

// find returns the operation for a method and a path; known says that the path
// has one for some method.
func (d *document) find(method, path string) (_ *operation, known bool) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	segments := strings.Split(path, "/")
	for m, operations := range d.operations {
		for i := range operations {
			if operations[i].matches(segments) {
				if m == method {
					return &operations[i], true
				}
				known = true
			}
		}
	}
	return nil, known
}

func (o *operation) matches(segments []string) bool {
	return slices.EqualFunc(o.path, segments, func(want, got string) bool {
		if strings.HasPrefix(want, "{") {
			return got != ""
		}
		return want == got
	})
}
