package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
)

// logLine is what lines about requests have in common.
type logLine struct {
	Level, Message, Method, Route, Path, Remote string

	RequestID *string  `json:"request_id"`
	Status    int      `json:"status"`
	Bytes     *int     `json:"bytes"`
	Sent      *int     `json:"request_bytes"`
	Took      *float64 `json:"took_ms"`
	Error     *string
}

// TestLogLines: every line about a request says which one, at debug level there
// is one more for its end, and none has anything of the body.
func TestLogLines(t *testing.T) {
	var log bytes.Buffer
	f := &fake{}
	h := New(f, f.conductor(), Options{Log: zerolog.New(&log).Level(zerolog.DebugLevel)})
	const secret = "424242"
	prompt := `{"token_ids":[` + secret + `]}`
	run := func(method, target, body, id string) []logLine {
		t.Helper()
		log.Reset()
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if id != "" {
			r.Header.Set("x-request-id", id)
		}
		tryCall(h, r)
		if strings.Contains(log.String(), secret) {
			t.Errorf("a prompt is in the log: %s", log.String())
		}
		var lines []logLine
		for text := range strings.Lines(log.String()) {
			var l logLine
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			if got := l.RequestID; (got == nil) != (id == "") || got != nil && *got != id {
				t.Errorf("request %q: %s", id, text)
			}
			if l.Message == "request" && (l.Level != "debug" || l.Bytes == nil || *l.Bytes < 0 || l.Sent == nil || l.Took == nil || *l.Took < 0 || l.Remote == "" || l.Path == "") {
				t.Errorf("access log lacks something: %s", text)
			}
			lines = append(lines, l)
		}
		return lines
	}
	show := func(lines []logLine) (out []string) {
		for _, l := range lines {
			out = append(out, strings.TrimSpace(l.Message+" "+l.Method+" "+l.Route))
		}
		return out
	}
	for _, id := range []string{"", `r-"1"`} {
		f.err, f.call, f.dump = nil, nil, ""
		lines := run("POST", "/select", prompt, id)
		equal(t, "served", show(lines), []string{"request POST /select"})
		if lines[0].Status != 200 || *lines[0].Sent != len(prompt) || *lines[0].Bytes == 0 {
			t.Errorf("access log: %+v", lines[0])
		}
		equal(t, "wrong shape", show(run("POST", "/select", `{"lora_name":`+secret+`}`, id)), []string{"request POST /select"})
		equal(t, "not found", show(run("BREW", "/nope", prompt, id)), []string{"request BREW"})
		equal(t, "pattern", show(run("DELETE", "/reservations/r", "", id)), []string{"request DELETE /reservations/:reservation_id"})
		f.err = errors.New("lost")
		equal(t, "failed", show(run("POST", "/select", prompt, id)), []string{"request failed POST /select", "request POST /select"})
		f.dump = "{"
		lines = run("GET", "/dump", "", id)
		equal(t, "broken off", show(lines), []string{"answer broken off GET /dump", "request GET /dump"})
		if lines[1].Status != 500 {
			t.Errorf("broken off: %+v", lines[1])
		}
		if lines[0].Error == nil || lines[1].Error != nil {
			t.Errorf("broken off: %+v", lines)
		}
		f.err, f.call = nil, func() { panic("boom") }
		equal(t, "panic", show(run("POST", "/select", prompt, id)), []string{"handler panicked POST /select", "request POST /select"})
	}
	h = New(f, f.conductor(), Options{Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
	f.call = nil
	equal(t, "above debug level", show(run("POST", "/select", prompt, "r")), []string(nil))
}

// TestAccessLogTellsErrorsApart: the line of a request has the text of its error,
// of a length that a log can take, and nothing if there is none.
func TestAccessLogTellsErrorsApart(t *testing.T) {
	var log bytes.Buffer
	f := &fake{}
	h := New(f, f.conductor(), Options{Log: zerolog.New(&log).Level(zerolog.DebugLevel)})
	long := strings.Repeat("x", 256)
	for _, tc := range []struct {
		target, body string
		err          error
		want         *string
	}{
		{"/select", "{}", nil, nil},
		{"/select", "{}", &contract.Error{Kind: contract.Overloaded, Text: "all busy", Message: "come again"}, ptr("all busy")},
		{"/select", "{}", &contract.Error{Kind: contract.Unavailable, Text: "no worker"}, ptr("no worker")},
		{"/select", "{}", &contract.Error{Kind: contract.Unavailable, Text: "queue full", Details: 1}, ptr("queue full")},
		{"/select", "{}", &contract.Error{Kind: contract.Cancelled, Text: "gone"}, ptr("gone")},
		{"/select", "{}", &contract.Error{Text: long}, &long},
		{"/select", "{}", &contract.Error{Text: long + "y"}, ptr(long + "…")},
		{"/select", "{}", errors.New("none of their business"), &internalProblem.text},
		{"/select", "{", nil, ptr("Failed to parse the request body as JSON: end of text, expected a member name at line 1 column 2")},
		{"/nope", "", nil, &errRouteNotFound.text},
		{"/workers/x", "", nil, &errMethodNotAllowed.text},
		{"/reservations/a%ff/output_block", "{}", nil, ptr("Invalid URL: Invalid UTF-8 in `reservation_id`")},
	} {
		log.Reset()
		f.err = tc.err
		call(t, h, "POST", tc.target, tc.body, nil)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		var last logLine
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
			t.Fatalf("%v: %s", err, log.String())
		}
		equal(t, tc.target+" "+tc.body, last.Error, tc.want)
	}
	f.err, f.call = nil, func() { panic("boom") }
	log.Reset()
	call(t, h, "GET", "/workers", "", nil)
	if !strings.Contains(log.String(), `"error":"internal error"`) {
		t.Errorf("after a panic: %s", log.String())
	}
}
