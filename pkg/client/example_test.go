package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/select-service/select-service/pkg/client"
)

// Example books a worker for a prompt, reports the first token and frees the load
// at the end of the request. A real program passes the address of its service.
func Example() {
	service := httptest.NewServer(standIn())
	defer service.Close()

	c, err := client.New(service.URL, client.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	ctx := context.Background() // of the request: its end frees the lease, too
	lease, err := c.Lease(ctx, client.SelectRequest{
		Model:  "llama",
		Prompt: client.Prompt{TokenIDs: []uint32{1, 2, 3, 4}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	s := lease.Selection()
	fmt.Printf("send the request to %s, DP rank %d\n", s.Endpoint, s.DPRank)
	if err := lease.PrefillComplete(ctx); err != nil {
		fmt.Println(err)
	}
	if err := lease.Free(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// service: booked 4 tokens of llama
	// send the request to http://worker-7:8000, DP rank 1
	// service: prefill is complete
	// service: freed
}

// standIn is a service with one worker.
func standIn() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1.6/select_and_reserve", func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			ID           string   `json:"selection_id"`
			Model        string   `json:"model_name"`
			TokenIDs     []uint32 `json:"token_ids"`
			LeaseSeconds float64  `json:"lease_seconds"`
		}
		if r.Header.Get("Content-Type") != "application/json" { // a simple service: the client falls back
			http.Error(w, "JSON only", http.StatusUnsupportedMediaType)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Printf("service: booked %d tokens of %s\n", len(req.TokenIDs), req.Model)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"selection_id": req.ID, "worker_id": 7, "dp_rank": 1, "endpoint": "http://worker-7:8000", "lease_seconds": req.LeaseSeconds,
		})
	})
	mux.HandleFunc("POST /v1.6/reservations/{id}/prefill_complete", func(http.ResponseWriter, *http.Request) {
		fmt.Println("service: prefill is complete")
	})
	mux.HandleFunc("DELETE /v1.6/reservations/{id}", func(http.ResponseWriter, *http.Request) {
		fmt.Println("service: freed")
	})
	return mux
}
