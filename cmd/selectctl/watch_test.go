package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestInterrupted: an interruption is how what goes on is ended, and a failure of what was to be done. What has
// been shown and has not changed is not shown again, and what fails later is said, since a service may come back.
func TestInterrupted(t *testing.T) {
	for command, want := range map[string]int{
		"workers list --watch": exitOK, "doctor -w": exitOK, "decisions -f": exitOK, "workers rm 1": exitFailed, "status": exitFailed,
	} {
		ctx, stop := context.WithCancel(t.Context())
		service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			stop()
			<-r.Context().Done()
		}))
		var out bytes.Buffer
		if code := run(ctx, append(strings.Fields(command), "--url", service.URL), nil, &out, &out); code != want {
			t.Errorf("%s ended with %d, want %d: %s", command, code, want, &out)
		}
		service.Close()
		stop()
	}
	var out bytes.Buffer
	a, rounds := &app{out: &out}, 0
	ctx, stop := context.WithCancel(t.Context())
	answers := []string{"one", "one", "", "two"} // "": a failure
	err := a.repeat(ctx, 1, func() error {
		text := answers[rounds]
		if rounds++; rounds == len(answers) {
			stop()
		}
		if text == "" {
			return fmt.Errorf("away")
		}
		fmt.Fprintln(a.out, text)
		return nil
	})
	if got := out.String(); err != nil || got != "one\naway\n" { // the last one was interrupted
		t.Errorf("%v, it showed %q", err, got)
	}
}

// TestPrintable: a terminal obeys nothing that comes from callers or engines.
func TestPrintable(t *testing.T) {
	const evil = "a\x1b[31mb\rc\u202e\u0085"
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decision := map[string]any{"time": "2026-01-02T03:04:05Z", "selection_id": evil, "model_name": evil, "policy": evil}
		answer := map[string]any{"/v1.6/decisions": []any{decision}, "/v1.6/explain": map[string]any{"refusal": evil}, "/v1.6/doctor": map[string]any{
			"findings": []any{map[string]any{"sentence": evil, "remedy": evil, "severity": "error"}}, "healthy": true,
		}}[r.URL.Path]
		if answer == nil {
			w.WriteHeader(http.StatusBadRequest)
			answer = map[string]string{"error": evil}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer service.Close()
	want := func(what, text string) {
		t.Helper()
		if strings.ContainsAny(text, "\x1b\r\u202e\u0085") || !strings.Contains(text, "[31mb") {
			t.Errorf("%s: %q", what, text)
		}
	}
	for _, command := range []string{"decisions -o wide", "explain -t 1", "doctor", "workers list"} {
		var out bytes.Buffer
		run(t.Context(), append(strings.Fields(command), "--url", service.URL), nil, &out, &out)
		want(command, out.String())
	}
	for _, format := range []string{"name", "json"} { // also where a page is made for a window
		var out bytes.Buffer
		a := &app{out: &out, terminal: true, options: options{format: format}}
		if err := a.show([]string{evil}, &table{names: []string{evil}}); err != nil {
			t.Error(err)
		}
		want(format, out.String())
	}
}
