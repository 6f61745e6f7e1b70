package gateway_test

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestByteOrderMark: a body may begin with a byte order mark, which does not reach the engine:
// some refuse it. What is no JSON is not changed.
func TestByteOrderMark(t *testing.T) {
	const mark = "\ufeff"
	w := start(t)
	w.put(1, 1)
	text := chat(servicetest.Prompt(1, 16), "")
	e, p := w.post(chatPath, mark+text)
	if p.destination != at(1) || p.body != text {
		t.Errorf("answered %+v", p)
	}
	w.wantLoads("1/0: 16 4 1")
	e.close()
	e, p = w.post(chatPath, mark+text, "x-tenant-id", "a")
	if want := `{"cache_salt":"a",` + text[1:]; p.body != want {
		t.Errorf("with a salt the body is %q, want %q", p.body, want)
	}
	e.close()
	for body, want := range map[string]string{mark + `{"model":"m"}`: `{"model":"m"}`, mark + "no JSON": mark + "no JSON"} {
		e, p = w.post("/v1/embeddings", body)
		if p.destination != at(1) || p.body != want {
			t.Errorf("%q: answered %+v", body, p)
		}
		e.close()
	}
	for path, body := range map[string]string{"/v1/embeddings": `{"model":"another"}`, chatPath: strings.Replace(chat(nil, ""), `"m"`, `"another"`, 1)} {
		if _, p := w.post(path, mark+body); p.status != 404 {
			t.Errorf("%s, an unknown model: %+v", path, p)
		}
	}
	if _, p := w.post(chatPath, mark+mark+chat(servicetest.Prompt(1, 16), "")); p.status != 400 {
		t.Errorf("two marks: %+v", p)
	}
}
