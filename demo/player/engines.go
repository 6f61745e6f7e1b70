package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// engineClient is a client of one simulated engine.
type engineClient struct{ url string }

func (e engineClient) reset(ctx context.Context, speedup float64) (info simapi.Info, err error) {
	err = call(ctx, http.MethodPost, e.url+simapi.PathReset, simapi.ResetRequest{Speedup: speedup}, &info)
	return info, err
}

func (e engineClient) stats(ctx context.Context) (stats simapi.Stats, err error) {
	err = call(ctx, http.MethodGet, e.url+simapi.PathStats, nil, &stats)
	return stats, err
}

func (e engineClient) slow(ctx context.Context, factor float64) error {
	return call(ctx, http.MethodPost, e.url+simapi.PathSlow, simapi.SlowRequest{Factor: factor}, nil)
}

// engineModel has the properties of an engine.
type engineModel struct {
	Chunked     bool    `json:"chunked"`
	Speed       float64 `json:"speed"`
	CacheBlocks int     `json:"cache_blocks"`
}

// modelsOf asks all engines for their properties.
func modelsOf(ctx context.Context, urls []string) ([]engineModel, error) {
	var all []engineModel
	for _, url := range urls {
		var info simapi.Info
		if err := call(ctx, http.MethodGet, url+simapi.PathInfo, nil, &info); err != nil {
			return nil, err
		}
		all = append(all, engineModel{Chunked: info.Chunked, Speed: info.Speed, CacheBlocks: info.CacheBlocks})
	}
	return all, nil
}

// describe describes the engines, with the properties in which they differ.
func describe(engines []engineModel) string {
	var speeds, caches []string
	var differs [2]bool
	text := fmt.Sprintf("%d engines", len(engines))
	for _, e := range engines {
		speeds, caches = append(speeds, fmt.Sprint(e.Speed)), append(caches, stats.Thousands(e.CacheBlocks))
		differs[0] = differs[0] || e.Speed != engines[0].Speed
		differs[1] = differs[1] || e.CacheBlocks != engines[0].CacheBlocks
	}
	if len(engines) > 0 && engines[0].Chunked {
		text += " with chunked prefill"
	}
	if differs[0] {
		text += ", speeds " + strings.Join(speeds, " ")
	}
	if differs[1] {
		text += ", caches of " + strings.Join(caches, " ") + " blocks"
	}
	return text
}

// unseen reports whether an error is net/http's own answer to a request that no handler has seen. On a
// machine with twenty other jobs one request of 6,000 gets it.
func unseen(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.status == http.StatusBadRequest && status.text == "400 Bad Request"
}

// generate sends one request and calls step for each of its steps.
func (e engineClient) generate(ctx context.Context, r *workload.Request, step func(simapi.Step)) error {
	request := simapi.GenerateRequest{RequestID: fmt.Sprint(r.ID), TokenIDs: r.Prompt, OutputTokenIDs: r.Output}
	body, err := open(ctx, http.MethodPost, e.url+simapi.PathGenerate, request)
	if unseen(err) {
		body, err = open(ctx, http.MethodPost, e.url+simapi.PathGenerate, request)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var s simapi.Step
		if err := lines.Decode(&s); err != nil {
			return fmt.Errorf("%s: answer breaks off: %w", e.url, err)
		}
		if s.Event == simapi.EventError {
			return fmt.Errorf("%s: %s", e.url, s.Error)
		}
		step(s)
		if s.Event == simapi.EventDone {
			return nil
		}
	}
}

// errNoSubscriber is the error if a replica has not connected to an engine's events.
var errNoSubscriber = errors.New("not every replica has subscribed to the KV events")

const (
	subscribeWait = time.Minute
	subscribePoll = 20 * time.Millisecond
)

// awaitSubscribers waits until n replicas have subscribed to the engine's events, so that no
// event is lost before the first request.
func (e engineClient) awaitSubscribers(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, subscribeWait, errNoSubscriber)
	defer cancel()
	for {
		var info simapi.Info
		if err := call(ctx, http.MethodGet, e.url+simapi.PathInfo, nil, &info); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if info.Subscribers >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", e.url, context.Cause(ctx))
		case <-time.After(subscribePoll):
		}
	}
}
