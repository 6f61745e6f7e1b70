package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/workload"
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

// generate plays one request and calls step for each thing that happens to it.
func (e engineClient) generate(ctx context.Context, r *workload.Request, step func(simapi.Step)) error {
	body, err := open(ctx, http.MethodPost, e.url+simapi.PathGenerate, simapi.GenerateRequest{
		RequestID: fmt.Sprint(r.ID), TokenIDs: r.Prompt, OutputTokenIDs: r.Output,
	})
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

// errNoSubscriber means that a replica has not connected to an engine's events.
var errNoSubscriber = errors.New("not every replica has subscribed to the KV events")

const (
	subscribeWait = 10 * time.Second
	subscribePoll = 20 * time.Millisecond
)

// awaitSubscribers waits until n replicas listen to the engine's events, so that no
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
