package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
)

// Roles of an engine. One without a role does all.
const (
	RolePrefill = "prefill" // it computes prompts, and refuses other requests
	RoleDecode  = "decode"  // it has a sidecar, as llm-d's, which obeys prefillerHeader
)

// The headers of llm-d's sidecar that this one obeys: the engine that is to compute the prompt, and its rank.
const (
	prefillerHeader   = "X-Prefiller-Host-Port"
	prefillRankHeader = "X-Prefiller-Data-Parallel-Rank"
)

// Pairing is how an engine passes on KV caches to others.
type Pairing struct {
	Role   string
	Domain string // its transfer domain
	// Links to engines of the same domain, and to all others.
	Within, Between engine.Link
}

// link returns the link to an engine of a domain.
func (p *Pairing) link(domain string) engine.Link {
	if domain == p.Domain {
		return p.Within
	}
	return p.Between
}

// transferParams are vLLM's kv_transfer_params with its NIXL connector, as far as they are simulated, in requests and answers.
type transferParams struct {
	RemoteDecode  bool `json:"do_remote_decode"`  // compute the prompt for another engine
	RemotePrefill bool `json:"do_remote_prefill"` // another engine has computed it
	// RemoteDomain is the transfer domain of that one, in place of the address from which blocks are read.
	RemoteDomain string `json:"remote_domain,omitempty"`
}

// transfer returns what comes from another engine of a prompt.
func (s *Server) transfer(p *transferParams, prompt int) simapi.Transfer {
	if p == nil || !p.RemotePrefill {
		return simapi.Transfer{}
	}
	link := s.opt.Pairing.link(p.RemoteDomain)
	return simapi.Transfer{Tokens: prompt, SetupMS: 1e3 * link.Setup.Seconds(), PerTokenUS: 1e6 * link.PerToken.Seconds()}
}

// allow refuses what a prefill engine does not compute.
func (s *Server) allow(c *common) error {
	if s.opt.Pairing.Role == RolePrefill && (c.Transfer == nil || !c.Transfer.RemoteDecode) {
		return badRequest("this engine only computes prompts: kv_transfer_params with do_remote_decode is wanted")
	}
	return nil
}

// prefillElsewhere is the sidecar of an engine that decodes: it has the engine that the request names compute the prompt, and
// makes the request's body that for its own engine. It returns false if the request is answered, by an error.
func (s *Server) prefillElsewhere(w http.ResponseWriter, r *http.Request) bool {
	to := r.Header.Get(prefillerHeader)
	if s.opt.Pairing.Role != RoleDecode || to == "" {
		return true
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, badRequest("the body of the request: %v", err))
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var members map[string]any
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return true // the engine refuses it
	}
	params := transferParams{RemoteDecode: true}
	asked := maps.Clone(members)
	delete(asked, "stream_options")
	delete(asked, "max_completion_tokens")
	asked["stream"], asked["max_tokens"], asked["kv_transfer_params"] = false, 1, params
	answer, status, err := s.ask(r, "http://"+to+r.URL.Path, asked)
	if err != nil {
		refuse(w, &refusal{http.StatusBadGateway, "BadGateway", fmt.Sprintf("the prefill at %s: %v", to, err)})
		return false
	}
	if status != http.StatusOK {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(answer) // fails only if the client is gone
		return false
	}
	var prefilled common
	if err := json.Unmarshal(answer, &prefilled); err != nil || prefilled.Transfer == nil {
		refuse(w, &refusal{http.StatusBadGateway, "BadGateway", fmt.Sprintf("the prefill at %s has no kv_transfer_params", to)})
		return false
	}
	members["kv_transfer_params"] = prefilled.Transfer
	if body, err = json.Marshal(members); err != nil {
		panic(err) // it was JSON before
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return true
}

// ask sends the request for the prefill.
func (s *Server) ask(r *http.Request, url string, body map[string]any) (answer []byte, status int, err error) {
	header := make(http.Header)
	if rank := r.Header.Get(prefillRankHeader); rank != "" {
		header.Set(rankHeader, rank)
	}
	if source := r.Header.Get(sourceHeader); source != "" {
		header.Set(sourceHeader, source)
	}
	return post(r.Context(), url, header, body)
}

// post sends another engine a body, as JSON, that can be written as that.
func post(ctx context.Context, url string, header http.Header, body any) (answer []byte, status int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return nil, 0, err
	}
	req.Header = header
	header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	return answer, resp.StatusCode, err
}
