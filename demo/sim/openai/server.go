// Package openai serves the API of vLLM's server for a simulated engine: chat and text
// completions, responses and Anthropic's messages, streamed or not, models, /tokenize, load and event
// sockets, with data-parallel ranks behind one port.
// The engine's model decides when tokens come, package tokenizer which ones.
package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/simapi"
)

// maxBody is the largest request, in bytes.
const maxBody = 64 << 20

// rankHeader names the rank that must serve a request, as in vLLM.
const rankHeader = "X-data-parallel-rank"

// Options are the options of a server.
type Options struct {
	Model    string       // model name in requests
	Adapters []string     // LoRA adapters, which requests name as the model
	Render   bool         // serve the render routes too
	Ranks    []*node.Node // data-parallel ranks, at least one
	Pairing  Pairing
}

// Server answers requests from its ranks.
type Server struct {
	opt    Options
	faults atomic.Pointer[simapi.Faults]
	ids    atomic.Uint64 // of requests
	turns  atomic.Uint64 // of ranks, for requests that name none
}

// New returns a server for nodes that run.
func New(opt Options) *Server {
	s := &Server{opt: opt}
	s.faults.Store(&simapi.Faults{})
	return s
}

// Handler serves the API, and the paths of package simapi: those of rank 0, and below
// /ranks/N those of rank N.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for i, rank := range s.opt.Ranks {
		prefix := fmt.Sprintf("/ranks/%d", i)
		mux.Handle(prefix+"/", http.StripPrefix(prefix, rank.Handler()))
		mux.HandleFunc("POST "+prefix+simapi.PathFetch, s.serveFetch(rank))
	}
	mux.HandleFunc("POST "+simapi.PathFetch, s.serveFetch(s.opt.Ranks...))
	mux.Handle("/", s.opt.Ranks[0].Handler())
	mux.HandleFunc("POST "+simapi.PathFaults, s.serveFaults)
	mux.HandleFunc("GET /v1/models", s.serveModels)
	mux.HandleFunc("GET /version", s.serveVersion)
	mux.HandleFunc("GET /kv_event_sources", s.serveSources)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("POST /v1/chat/completions", s.serveChat)
	mux.HandleFunc("POST /v1/completions", s.serveCompletion)
	mux.HandleFunc("POST /v1/messages", s.serveMessages)
	mux.HandleFunc("POST /v1/responses", s.serveResponses)
	mux.HandleFunc("POST /tokenize", s.serveTokenize)
	if s.opt.Render {
		mux.HandleFunc("POST /v1/chat/completions/render", s.serveRenderChat)
		mux.HandleFunc("POST /v1/completions/render", s.serveRenderCompletion)
	}
	return mux
}

// SetFaults sets the faults of completions from now on.
func (s *Server) SetFaults(f simapi.Faults) { s.faults.Store(&f) }

func (s *Server) serveFaults(w http.ResponseWriter, r *http.Request) {
	var f simapi.Faults
	if !decode(w, r, &f) {
		return
	}
	s.SetFaults(f)
	reply(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (s *Server) serveModels(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		OwnedBy     string `json:"owned_by"`
		Parent      string `json:"parent,omitempty"`
		MaxModelLen int    `json:"max_model_len"` // tokens
	}
	list := []model{{ID: s.opt.Model, Object: "model", OwnedBy: "sim-engine", MaxModelLen: s.maxModelLen()}}
	for _, name := range s.opt.Adapters {
		list = append(list, model{ID: name, Object: "model", OwnedBy: "sim-engine", Parent: s.opt.Model, MaxModelLen: s.maxModelLen()})
	}
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *Server) maxModelLen() int {
	info := s.opt.Ranks[0].Info()
	return info.CacheBlocks * info.BlockSize
}

// adapter returns the adapter that a model name means, "" for the base model.
func (s *Server) adapter(model string) (string, error) {
	switch {
	case model == s.opt.Model || model == "":
		return "", nil
	case slices.Contains(s.opt.Adapters, model):
		return model, nil
	}
	return "", &refusal{http.StatusNotFound, "NotFoundError", fmt.Sprintf("The model `%s` does not exist.", model)}
}

// rank returns the rank that a request names, otherwise the next one in turn.
func (s *Server) rank(r *http.Request) (*node.Node, error) {
	name := r.Header.Get(rankHeader)
	if name == "" {
		return s.opt.Ranks[s.turns.Add(1)%uint64(len(s.opt.Ranks))], nil
	}
	n, err := strconv.Atoi(name)
	if err != nil || n < 0 || n >= len(s.opt.Ranks) {
		return nil, badRequest("%s %q is none of %d ranks", rankHeader, name, len(s.opt.Ranks))
	}
	return s.opt.Ranks[n], nil
}

// pass applies the faults that come before an answer. It reports whether the answer may begin.
func (s *Server) pass(w http.ResponseWriter, r *http.Request) bool {
	f := s.faults.Load()
	if f.DelayMS > 0 {
		select {
		case <-r.Context().Done():
			return false
		case <-time.After(time.Duration(f.DelayMS) * time.Millisecond):
		}
	}
	switch {
	case f.Status != 0:
		refuse(w, &refusal{f.Status, http.StatusText(f.Status), "as /faults says"})
		return false
	case f.Reset && f.ResetTokens == 0:
		panic(http.ErrAbortHandler) // breaks the connection
	}
	return true
}

// breaks breaks the connection if the faults say so after that many tokens.
func (s *Server) breaks(tokens int) {
	if f := s.faults.Load(); f.Reset && f.ResetTokens > 0 && tokens >= f.ResetTokens {
		panic(http.ErrAbortHandler)
	}
}

// refusal is an error in vLLM's form.
type refusal struct {
	status        int
	kind, message string
}

func (r *refusal) Error() string { return r.message }

func badRequest(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...)}
}

func refuse(w http.ResponseWriter, err error) {
	var e *refusal
	if !errors.As(err, &e) {
		e = &refusal{http.StatusBadRequest, "BadRequestError", err.Error()}
	}
	reply(w, e.status, map[string]any{"error": map[string]any{"message": e.message, "type": e.kind, "param": nil, "code": e.status}})
}

// decode reads the body of a request, or refuses it.
func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(v); err != nil {
		refuse(w, badRequest("the body of the request: %v", err))
		return false
	}
	return true
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client is gone
}
