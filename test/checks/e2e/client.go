package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Answer is a response that was read to its end.
type Answer struct {
	Status int
	Body   []byte
}

func (a Answer) String() string { return fmt.Sprintf("%d %.300s", a.Status, a.Body) }

// Call sends a request and reads its answer. body is JSON text ([]byte), nil for
// none, or a value to encode.
func Call(ctx context.Context, client *http.Client, method, url string, body any) (Answer, error) {
	text, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return Answer{}, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(text))
	if err != nil {
		return Answer{}, err
	}
	if text != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, got}, err
}
