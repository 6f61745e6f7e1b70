package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// receiver is a client of the service that receives.
type receiver struct{ url string }

// sum is the load of a model over all ranks.
type sum struct{ requests, prefill int64 }

// register adds the sender's workers to the receiver's catalog.
func (r receiver) register(ctx context.Context) error {
	for w := range workers + 1 {
		model, size := feedModel, ranks
		if w == workers {
			model, size = probeModel, 1
		}
		var record struct {
			Lifecycle string `json:"lifecycle"`
		}
		err := r.call(ctx, http.MethodPost, "/workers", map[string]any{
			"worker_id": w + 1, "model_name": model, "endpoint": "http://127.0.0.1:1",
			"block_size": blockSize, "data_parallel_size": size, "max_num_batched_tokens": 1 << 40,
		}, &record)
		if err != nil {
			return err
		}
		if record.Lifecycle != "schedulable" {
			return fmt.Errorf("worker %d is %s: does the receiver want KV events?", w+1, record.Lifecycle)
		}
	}
	return nil
}

func (r receiver) loads(ctx context.Context, model string) (total sum, err error) {
	var models []struct {
		Loads []struct {
			Requests int64 `json:"active_requests"`
			Prefill  int64 `json:"potential_prefill_tokens"`
		} `json:"loads"`
	}
	err = r.call(ctx, http.MethodGet, "/loads?model_name="+model, nil, &models)
	for _, m := range models {
		for _, l := range m.Loads {
			total.requests += l.Requests
			total.prefill += l.Prefill
		}
	}
	return total, err
}

// await asks until the probes' rank has so many requests, and returns how long
// that took and how many there are; more than probeWait says that it has given up.
func (r receiver) await(ctx context.Context, requests int64) (took time.Duration, now int64, err error) {
	begun := time.Now()
	for {
		got, err := r.loads(ctx, probeModel)
		took := time.Since(begun)
		if err != nil || got.requests == requests || took > probeWait {
			return took, got.requests, err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (r receiver) call(ctx context.Context, method, path string, body, answer any) error {
	var payload io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		payload = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, payload)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, text)
	}
	return json.Unmarshal(text, answer)
}
