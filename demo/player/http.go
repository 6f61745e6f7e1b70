package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// client has no timeout of its own: answers last as long as the model takes.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}

// statusError is an answer with another status than 2xx.
type statusError struct {
	method, url string
	status      int
	text        string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s %s: status %d: %s", e.method, e.url, e.status, e.text)
}

// open sends body (nil: none) as JSON and returns the body of a 2xx answer.
func open(ctx context.Context, method, url string, body any) (io.ReadCloser, error) {
	var payload io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, url, err)
		}
		payload = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, payload)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // the status says enough
		return nil, &statusError{method, url, resp.StatusCode, strings.TrimSpace(string(text))}
	}
	return resp.Body, nil
}

// call is open for answers that are one JSON value; answer may be nil.
func call(ctx context.Context, method, url string, body, answer any) error {
	r, err := open(ctx, method, url, body)
	if err != nil {
		return err
	}
	defer r.Close()
	if answer != nil {
		if err := json.NewDecoder(r).Decode(answer); err != nil {
			return fmt.Errorf("%s %s: %w", method, url, err)
		}
	}
	_, _ = io.Copy(io.Discard, r) // so that the connection is used again
	return nil
}
