package openai

import (
	"bytes"
	"mime"
	"strings"
)

const (
	// maxFormParts bounds the parts of a form that are looked at. Starlette, which reads the forms of vLLM and
	// SGLang, refuses more than 1,000 fields or files.
	maxFormParts = 2000
	// maxPartHead bounds the headers of a part, in bytes.
	maxPartHead = 16 << 10
	// maxFormModel is the longest name that is told apart, in bytes.
	maxFormModel = 4 << 10
	// maxBoundary bounds the boundary between parts, in bytes. RFC 2046 allows 70.
	maxBoundary = 256
)

// FormModel returns the field model of a body in multipart/form-data (RFC 7578), as those of audio and
// images have it; of several fields of the name the last one, as the engines take it. It is empty if there is none
// or the form is broken. The body is read in place, once.
func FormModel(contentType string, body []byte) (model string) {
	boundary := formBoundary(contentType)
	if boundary == "" {
		return ""
	}
	f := form{body: body, delimiter: []byte("--" + boundary)}
	_, at, last, ok := f.next(0) // what stands before the first delimiter is no part
	for range maxFormParts {
		if !ok || last {
			break
		}
		var end int
		part := at
		if end, at, last, ok = f.next(part); !ok {
			break
		}
		head, value, whole := splitPart(body[part:end])
		if !whole {
			return ""
		}
		if isModelField(head) {
			model = string(value[:min(len(value), maxFormModel)])
		}
	}
	if !ok || !last {
		return ""
	}
	return model
}

// formBoundary returns the boundary of a form, "" if the type is another.
func formBoundary(contentType string) string {
	media, parameters, err := mime.ParseMediaType(contentType)
	if media != "multipart/form-data" {
		return ""
	}
	boundary := parameters["boundary"]
	if err != nil { // some write a boundary without quotes that has to have them
		if i := strings.Index(strings.ToLower(contentType), "boundary="); i >= 0 {
			boundary, _, _ = strings.Cut(contentType[i+len("boundary="):], ";")
			boundary = strings.Trim(strings.TrimSpace(boundary), `"`)
		}
	}
	if len(boundary) > maxBoundary {
		return ""
	}
	return boundary
}

// form is a body in parts, with a delimiter at the beginning of a line before each and after the last.
type form struct {
	body, delimiter []byte
}

// next finds the first delimiter at or behind an offset: the text before it ends at end, without the line
// break that belongs to the delimiter, and the next part begins at part. last: the form ends there.
func (f *form) next(from int) (end, part int, last, ok bool) {
	for at := from; ; at++ {
		i := bytes.Index(f.body[at:], f.delimiter)
		if i < 0 {
			return 0, 0, false, false
		}
		at += i
		if at > 0 && f.body[at-1] != '\n' {
			continue
		}
		rest := f.body[at+len(f.delimiter):]
		if bytes.HasPrefix(rest, []byte("--")) {
			return f.before(from, at), len(f.body), true, true
		}
		line := bytes.TrimLeft(rest, " \t")
		line = bytes.TrimPrefix(line, []byte{'\r'})
		if bytes.HasPrefix(line, newline) {
			return f.before(from, at), len(f.body) - len(line) + 1, false, true
		}
	}
}

// before returns where the text from an offset to a delimiter ends.
func (f *form) before(from, delimiter int) int {
	text := bytes.TrimSuffix(f.body[from:delimiter], newline)
	return from + len(bytes.TrimSuffix(text, []byte{'\r'}))
}

// splitPart splits a part at its first empty line. whole is false if it has none, or its head is too long.
func splitPart(part []byte) (head, value []byte, whole bool) {
	for at := 0; at <= maxPartHead; {
		n := bytes.IndexByte(part[at:min(len(part), at+maxPartHead)], '\n')
		if n < 0 {
			return nil, nil, false
		}
		if len(bytes.TrimSuffix(part[at:at+n], []byte{'\r'})) == 0 {
			return part[:at], part[at+n+1:], true
		}
		at += n + 1
	}
	return nil, nil, false
}

// isModelField reports whether a part with these headers is the field model, and no file of the name.
func isModelField(head []byte) bool {
	for len(head) > 0 {
		line := head
		for n := 0; ; { // a line that begins with a space continues the one before
			i := bytes.IndexByte(head[n:], '\n')
			if i < 0 {
				head = nil
				break
			}
			if n += i + 1; n == len(head) || head[n] != ' ' && head[n] != '\t' {
				line, head = head[:n], head[n:]
				break
			}
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		if !bytes.EqualFold(bytes.TrimSpace(name), []byte("content-disposition")) || !bytes.Contains(value, []byte("model")) && !bytes.ContainsAny(value, `%\`) {
			continue
		}
		kind, parameters, err := mime.ParseMediaType(strings.Join(strings.Fields(string(value)), " "))
		_, isFile := parameters["filename"]
		return err == nil && kind == "form-data" && parameters["name"] == "model" && !isFile
	}
	return false
}
