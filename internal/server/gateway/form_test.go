package gateway_test

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestForms: a form goes to an engine of the model that its field names, wherever that stands and however
// the form comes, and arrives as it was sent; one without a model, or broken, goes to any engine.
func TestForms(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.Models = nil })
	w.put(1, 1, named("llama"))
	w.put(2, 1, named("whisper"))
	w.put(3, 1, named("small"), func(r *catalog.Record) { r.Adapters = []string{"accent"} })
	const contentType = `multipart/form-data; boundary="xyz"`
	field := func(model string) string {
		return "--xyz\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + model + "\r\n"
	}
	file := "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" + strings.Repeat("\x00RIFF\r\n", 30_000) + "\r\n"
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/files"} {
		for _, tt := range []struct {
			body, want string
			status     int
		}{
			{body: field("whisper") + file + "--xyz--\r\n", want: at(2)},
			{body: file + field("whisper") + "--xyz--\r\n", want: at(2)},
			{body: file + field("accent") + "--xyz--\r\n", want: at(3)},
			{body: file + field("unknown") + "--xyz--\r\n", status: 404},
			{body: file + "--xyz--\r\n"},
			{body: field("whisper") + file},
		} {
			for range 10 { // with llama and whisper alike, a choice by load misses sooner or later
				e := w.open()
				e.request(path, false, "content-type", contentType)
				for rest := tt.body; ; {
					n := min(len(rest), 50_000)
					e.body(rest[:n], n == len(rest))
					if rest = rest[n:]; rest == "" {
						break
					}
				}
				p := e.placement(true, false)
				if p.status != tt.status || tt.want != "" && p.destination != tt.want || tt.status == 0 && p.body != tt.body {
					t.Fatalf("%s: %d bytes went to %q (%d), want %q (%d)", path, len(tt.body), p.destination, p.status, tt.want, tt.status)
				}
				e.cancel()
			}
		}
	}
}
