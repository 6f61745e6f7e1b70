// Package openapi holds what a server says against the description of its API.
package openapi

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Validator compares requests and answers of one listener with the document. It
// is safe for concurrent use.
type Validator struct {
	doc     *document
	schemas *schemas
	prefix  string
}

// Load returns the description of a server with the given contract, "1.3" or
// "1.6". The validator is for the selection service's listener.
func Load(contract string) (*Validator, error) {
	loading.Lock()
	defer loading.Unlock()
	if v := loaded[contract]; v != nil {
		return v, nil
	}
	doc, err := parse(contract)
	if err != nil {
		return nil, err
	}
	s, err := newSchemas(doc.text)
	if err != nil {
		return nil, err
	}
	v := &Validator{doc: doc, schemas: s}
	loaded[contract] = v
	return v, nil
}

var (
	loading sync.Mutex
	// loaded is guarded by loading.
	loaded = map[string]*Validator{}
)

// Under returns a validator for a listener that has the routes of a prefix,
// "/slots" or "/conductor", without it.
func (v *Validator) Under(prefix string) *Validator {
	return &Validator{doc: v.doc, schemas: v.schemas, prefix: prefix}
}

// Answer returns what is wrong with an answer, nil if nothing is. The target is
// as it was sent. Paths that are not described have to be answered with 404, their
// other methods with 405.
func (v *Validator) Answer(method, target string, status int, header http.Header, body []byte) error {
	if err := v.answer(method, v.path(target), status, header, body); err != nil {
		return fmt.Errorf("%s %s: %d %.300s: %w", method, target, status, body, err)
	}
	return nil
}

func (v *Validator) answer(method, path string, status int, header http.Header, body []byte) error {
	op, known := v.doc.find(method, path)
	if op == nil {
		return v.noRoute(known, method, path, status, header, body)
	}
	response, ok := op.responses[strconv.Itoa(status)].(object)
	if !ok {
		return fmt.Errorf("%s has no answer with this status", op.id)
	}
	response, at := v.doc.resolve(response, op.pointer.at("responses", strconv.Itoa(status)))
	if err := v.headers(response, at, header); err != nil {
		return err
	}
	content := v.doc.member(response, "content")
	if content == nil {
		if len(body) > 0 {
			return fmt.Errorf("%s has an answer without a body", op.id)
		}
		return nil
	}
	media, err := mediaType(header)
	if err != nil {
		return err
	}
	described, ok := content[media].(object)
	if !ok {
		return fmt.Errorf("%s has no answer of type %s", op.id, media)
	}
	if method == http.MethodHead {
		if len(body) > 0 {
			return errors.New("an answer to HEAD with a body")
		}
		return nil
	}
	switch {
	case described["schema"] == nil:
		return nil
	case media != "application/json":
		return v.schemas.check(at.at("content", media, "schema"), string(body))
	}
	return v.schemas.checkJSON(at.at("content", media, "schema"), body)
}

// noRoute is for what the document does not describe.
func (v *Validator) noRoute(known bool, method, path string, status int, header http.Header, body []byte) error {
	want := http.StatusNotFound
	if known {
		want = http.StatusMethodNotAllowed
	}
	if status != want {
		return fmt.Errorf("not described: %d is due", want)
	}
	media, err := mediaType(header)
	if err != nil {
		return err
	}
	if media != "application/json" {
		return fmt.Errorf("an error of type %s", media)
	}
	if method == http.MethodHead {
		return nil
	}
	form := "Error"
	if strings.HasPrefix(path, "/conductor/") {
		form = "ConductorError"
	}
	return v.schemas.checkJSON(pointer{"components", "schemas", form}, body)
}

// headers checks those that are described; only required ones have to be there.
func (v *Validator) headers(response object, at pointer, got http.Header) error {
	for name, h := range v.doc.member(response, "headers") {
		h, at := v.doc.resolve(h.(object), at.at("headers", name))
		values := got.Values(name)
		switch required, _ := h["required"].(bool); {
		case len(values) > 1:
			return fmt.Errorf("%d headers %s", len(values), name)
		case len(values) == 1:
			if err := v.header(h, at, values[0]); err != nil {
				return fmt.Errorf("header %s: %w", name, err)
			}
		case required:
			return fmt.Errorf("no header %s", name)
		}
	}
	return nil
}

func (v *Validator) header(h object, at pointer, value string) error {
	if v.doc.member(h, "schema")["type"] == "integer" {
		return v.schemas.checkJSON(at.at("schema"), []byte(value))
	}
	return v.schemas.check(at.at("schema"), value)
}

// Request returns what is wrong with the body of a request that the server has
// accepted. One in msgpack is not looked into: words are no arrays there.
func (v *Validator) Request(method, target string, header http.Header, body []byte) error {
	op, _ := v.doc.find(method, v.path(target))
	if op == nil {
		return fmt.Errorf("%s %s is not described", method, target)
	}
	if op.body == nil {
		return nil // any body is ignored
	}
	described, at := v.doc.resolve(op.body, op.pointer.at("requestBody"))
	if required, _ := described["required"].(bool); !required && len(body) == 0 {
		return nil
	}
	if media, err := mediaType(header); err == nil && media == "application/msgpack" {
		return nil
	}
	if err := v.schemas.checkJSON(at.at("content", "application/json", "schema"), body); err != nil {
		return fmt.Errorf("%s %s: accepted, but not described: %w", method, target, err)
	}
	return nil
}

// path returns where the document describes a target of the listener.
func (v *Validator) path(target string) string {
	path, _, _ := strings.Cut(target, "?")
	if v.prefix == "" {
		return path
	}
	var dialect string
	for _, d := range []string{"/v1.3", "/v1.6"} {
		if rest, ok := strings.CutPrefix(path, d+"/"); ok {
			dialect, path = d, "/"+rest
		}
	}
	if v.prefix == "/slots" && strings.HasPrefix(path, "/replica_sync/") {
		return dialect + path
	}
	return dialect + v.prefix + path
}

func mediaType(header http.Header) (string, error) {
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return "", fmt.Errorf("content type %q: %w", header.Get("Content-Type"), err)
	}
	return media, nil
}

// schemas compiles the document's schemas as they are asked for.
type schemas struct {
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

// documentURL only names the document: nothing is fetched.
const documentURL = "https://select-service.invalid/openapi.json"

func newSchemas(text []byte) (*schemas, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource(documentURL, doc); err != nil {
		return nil, err
	}
	return &schemas{compiler: c, compiled: map[string]*jsonschema.Schema{}}, nil
}

func (s *schemas) at(p pointer) (*jsonschema.Schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := p.fragment()
	if found := s.compiled[place]; found != nil {
		return found, nil
	}
	schema, err := s.compiler.Compile(documentURL + place)
	if err != nil {
		return nil, err
	}
	s.compiled[place] = schema
	return schema, nil
}

func (s *schemas) check(p pointer, value any) error {
	schema, err := s.at(p)
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// checkJSON reads numbers as they are written: not all fit a float64.
func (s *schemas) checkJSON(p pointer, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return s.check(p, value)
}
