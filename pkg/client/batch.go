package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/select-service/select-service/internal/codec/msgpack"
)

// BatchResult is the answer to one request of a batch: a Selection, or an error as Select
// returns it.
type BatchResult struct {
	Selection Selection
	Err       error
}

// SelectBatch is Select for up to 1,024 requests in one call. They are served in their
// order. A request that fails does not stop the others, and is not retried by itself.
// All must have the same PolicyClass. The error is about the call as a whole.
func (c *Client) SelectBatch(ctx context.Context, reqs []SelectRequest) ([]BatchResult, error) {
	k := call{method: http.MethodPost, path: "/select_batch", repeatable: true}
	own := make([]SelectRequest, len(reqs)) // a copy, because pack changes the prompts temporarily
	copy(own, reqs)
	for i := range own {
		if k.class = own[0].PolicyClass; own[i].PolicyClass != k.class {
			return nil, fmt.Errorf("%w: a batch with policy classes %q and %q", ErrBadRequest, k.class, own[i].PolicyClass)
		}
	}
	k.body = batchBody(own)
	var answer struct {
		Results []struct {
			Status     int             `json:"status"`
			Body       json.RawMessage `json:"body"`
			RetryAfter string          `json:"retry_after"`
		} `json:"results"`
	}
	if err := c.do(ctx, k, &answer); err != nil {
		return nil, err
	}
	if len(answer.Results) != len(reqs) {
		return nil, &LostError{Method: k.method, Path: k.path, Err: fmt.Errorf("%d results for %d requests", len(answer.Results), len(reqs))}
	}
	results := make([]BatchResult, len(reqs))
	for i, r := range answer.Results {
		if r.Status != http.StatusOK {
			results[i].Err = errorOf(k, &http.Response{StatusCode: r.Status, Header: http.Header{"Retry-After": {r.RetryAfter}}}, r.Body)
		} else if err := json.Unmarshal(r.Body, &results[i].Selection); err != nil {
			results[i].Err = &LostError{Method: k.method, Path: k.path, Err: err}
		}
	}
	return results, nil
}

// batchBody is the body of a batch.
type batchBody []SelectRequest

// MarshalJSON implements json.Marshaler.
func (b batchBody) MarshalJSON() ([]byte, error) {
	type one struct {
		Select *SelectRequest `json:"select"`
	}
	list := make([]one, len(b))
	for i := range b {
		list[i].Select = &b[i]
	}
	return json.Marshal(map[string][]one{"requests": list})
}

// pack writes the body in msgpack.
func (b batchBody) pack() ([]byte, error) {
	text := msgpack.AppendText(msgpack.AppendMapLen(nil, 1), "requests")
	text = msgpack.AppendArrayLen(text, len(b))
	for i := range b {
		one, err := pack(&b[i], &b[i].Prompt)
		if err != nil {
			return nil, err
		}
		text = append(msgpack.AppendText(msgpack.AppendMapLen(text, 1), "select"), one...)
	}
	return text, nil
}
