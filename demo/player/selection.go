package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// selection is a client of a selection service, and the policy that asks it. It uses only the
// HTTP contract.
type selection struct {
	url           string
	model, tenant string
	nth           int     // play of the policy, from 1
	replay        bool    // register the engines' replay endpoints
	late          bool    // report nothing of a request before its end
	meanOutput    float64 // expected tokens of an answer; see report
}

type workerRequest struct {
	WorkerID            int    `json:"worker_id"`
	ModelName           string `json:"model_name"`
	TenantID            string `json:"tenant_id"`
	Endpoint            string `json:"endpoint"`
	KVEventsEndpoint    string `json:"kv_events_endpoint"`
	ReplayEndpoint      string `json:"replay_endpoint,omitempty"`
	BlockSize           int    `json:"block_size"`
	MaxNumBatchedTokens int    `json:"max_num_batched_tokens"`
	TotalKVBlocks       int    `json:"total_kv_blocks"`
}

type workerRecord struct {
	Lifecycle             string   `json:"lifecycle"`
	NotSchedulableReasons []string `json:"not_schedulable_reasons"`
}

type selectRequest struct {
	ModelName            string   `json:"model_name"`
	TenantID             string   `json:"tenant_id"`
	ReservationID        string   `json:"reservation_id"`
	SelectionID          string   `json:"selection_id"` // the id of the reservation in Dynamo's 1.6 contract
	TokenIDs             []uint32 `json:"token_ids"`
	ExpectedOutputTokens int      `json:"expected_output_tokens"`
	// SessionContext has an effect in Dynamo's 1.6 contract.
	SessionContext *sessionContext `json:"session_context,omitempty"`
}

type sessionContext struct {
	SessionID       string `json:"session_id"`
	ParentSessionID string `json:"parent_session_id,omitempty"`
}

type selectAnswer struct {
	WorkerID int `json:"worker_id"`
	Overlap  struct {
		LongestMatched int `json:"longest_matched"`
	} `json:"overlap"`
}

// maxBatchedTokens is vLLM's default for long contexts.
const maxBatchedTokens = 8192

// register announces engine number id, from 1.
func (s *selection) register(ctx context.Context, id int, url string, info simapi.Info) error {
	var rec workerRecord
	if !s.replay {
		info.ReplayEndpoint = ""
	}
	err := call(ctx, http.MethodPost, s.url+"/workers", workerRequest{
		WorkerID: id, ModelName: s.model, TenantID: s.tenant, Endpoint: url,
		KVEventsEndpoint: info.KVEventsEndpoint, ReplayEndpoint: info.ReplayEndpoint,
		BlockSize: info.BlockSize, MaxNumBatchedTokens: maxBatchedTokens, TotalKVBlocks: info.CacheBlocks,
	}, &rec)
	if err != nil {
		return err
	}
	if rec.Lifecycle != "schedulable" {
		return fmt.Errorf("worker %d is %s: %s", id, rec.Lifecycle, strings.Join(rec.NotSchedulableReasons, "; "))
	}
	return nil
}

func (s *selection) unregister(ctx context.Context, id int) error {
	err := call(ctx, http.MethodDelete, fmt.Sprintf("%s/workers/%d", s.url, id), nil, nil)
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusNotFound {
		return nil
	}
	return err
}

// place asks for a worker and books the request on it.
func (s *selection) place(ctx context.Context, r *workload.Request) (placement, error) {
	var (
		sel     selectAnswer
		session *sessionContext
	)
	if r.Session != "" {
		session = &sessionContext{SessionID: s.named(r.Session)}
		if r.Parent != "" {
			session.ParentSessionID = s.named(r.Parent)
		}
	}
	err := call(ctx, http.MethodPost, s.url+"/select_and_reserve", selectRequest{
		ModelName: s.model, TenantID: s.tenant, ReservationID: s.reservationID(r), SelectionID: s.reservationID(r),
		TokenIDs: r.Prompt, ExpectedOutputTokens: int(s.meanOutput), SessionContext: session,
	}, &sel)
	if err != nil {
		return placement{}, err
	}
	return placement{engine: sel.WorkerID - 1, expected: sel.Overlap.LongestMatched}, nil
}

// report reports the progress of a request to the service. A router does not know the length of
// an answer, so the blocks of a request decay towards the mean length of this workload's answers.
func (s *selection) report(ctx context.Context, r *workload.Request, _ placement, step simapi.Step) error {
	path := s.url + "/reservations/" + s.reservationID(r)
	switch {
	case s.late && step.Event == simapi.EventDone:
		err := call(ctx, http.MethodPost, path+"/prefill_complete", nil, nil)
		return errors.Join(err, call(ctx, http.MethodDelete, path, nil, nil))
	case s.late && step.Event != simapi.EventError:
		return nil
	}
	switch step.Event {
	case simapi.EventFirstToken:
		return call(ctx, http.MethodPost, path+"/prefill_complete", nil, nil)
	case simapi.EventBlock:
		left := max(0, 1-float64(step.OutputTokens)/s.meanOutput)
		return call(ctx, http.MethodPost, path+"/output_block", map[string]float64{"decay_fraction": left}, nil)
	}
	return call(ctx, http.MethodDelete, path, nil, nil)
}

// free ends the reservation of a request, if there is one.
func (s *selection) free(ctx context.Context, r *workload.Request) error {
	return call(ctx, http.MethodDelete, s.url+"/reservations/"+s.reservationID(r), nil, nil)
}

// reservations counts the reservations on the engines.
func (s *selection) reservations(ctx context.Context) (n int, err error) {
	var models []struct {
		Loads []struct {
			ActiveRequests int `json:"active_requests"`
		} `json:"loads"`
	}
	query := url.Values{"model_name": {s.model}, "tenant_id": {s.tenant}, "routing_group": {s.tenant}}
	err = call(ctx, http.MethodGet, s.url+"/loads?"+query.Encode(), nil, &models)
	for _, m := range models {
		for _, l := range m.Loads {
			n += l.ActiveRequests
		}
	}
	return n, err
}

func (s *selection) reservationID(r *workload.Request) string { return s.named(strconv.Itoa(r.ID)) }

// named returns a name of a reservation or a session that differs between the plays of a run: a service may remember
// names for a while after their end.
func (s *selection) named(name string) string {
	if s.nth > 1 {
		return fmt.Sprintf("%s-%d-%s", s.model, s.nth, name)
	}
	return s.model + "-" + name
}
