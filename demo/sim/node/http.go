package node

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
)

const maxBody = 64 << 20

// Handler serves the paths of package simapi.
func (n *Node) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET "+simapi.PathInfo, func(w http.ResponseWriter, _ *http.Request) { reply(w, n.Info()) })
	mux.HandleFunc("GET "+simapi.PathStats, func(w http.ResponseWriter, _ *http.Request) { reply(w, n.Stats()) })
	mux.HandleFunc("POST "+simapi.PathReset, n.serveReset)
	mux.HandleFunc("POST "+simapi.PathSlow, n.serveSlow)
	mux.HandleFunc("POST "+simapi.PathClear, n.serveClear)
	mux.HandleFunc("POST "+simapi.PathGenerate, n.serveGenerate)
	return mux
}

func (n *Node) serveReset(w http.ResponseWriter, r *http.Request) {
	var req simapi.ResetRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	info, err := n.Reset(req.Speedup)
	if err != nil {
		http.Error(w, err.Error(), status(err))
		return
	}
	reply(w, info)
}

func (n *Node) serveSlow(w http.ResponseWriter, r *http.Request) {
	var req simapi.SlowRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := n.Slow(req.Factor); err != nil {
		http.Error(w, err.Error(), status(err))
		return
	}
	reply(w, map[string]string{"status": "ok"})
}

func (n *Node) serveClear(w http.ResponseWriter, _ *http.Request) {
	if err := n.ClearCache(); err != nil {
		http.Error(w, err.Error(), status(err))
		return
	}
	reply(w, map[string]string{"status": "ok"})
}

// serveGenerate streams the steps as they happen. A caller that goes away does
// not stop the request.
func (n *Node) serveGenerate(w http.ResponseWriter, r *http.Request) {
	var req simapi.GenerateRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	steps, err := n.Generate(req)
	if err != nil {
		http.Error(w, err.Error(), status(err))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc, flush := json.NewEncoder(w), http.NewResponseController(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case s, ok := <-steps:
			if !ok {
				return
			}
			if enc.Encode(s) != nil || flush.Flush() != nil {
				return
			}
		}
	}
}

func status(err error) int {
	switch {
	case errors.Is(err, ErrBusy):
		return http.StatusConflict
	case errors.Is(err, engine.ErrEmpty), errors.Is(err, engine.ErrTooLong), errors.Is(err, ErrSpeedup), errors.Is(err, ErrFactor):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails only if the client is gone
}
