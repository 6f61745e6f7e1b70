package main

import (
	"bytes"
	"context"
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
