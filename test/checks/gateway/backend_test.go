package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/node"
	"github.com/select-service/select-service/demo/sim/openai"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/test/helpers/kvpub"
)

// backend is a simulated engine on a port of this process.
type backend struct {
	*openai.Server
	name    string // A, B, …, which its answers have in a header
	ranks   []*node.Node
	first   int    // number of the first of them
	address string // host:port

	http *http.Server
	end  func() // ends all of it

	mu   sync.Mutex // guards what follows
	seen []seen
	// instead answers requests in place of the engine, if it is not nil.
	instead http.HandlerFunc
}

// engineHeader says in an answer which engine gave it.
const engineHeader = "X-Engine"

// seen is a request that reached an engine.
type seen struct {
	path    string
	header  http.Header
	trailer http.Header
	body    []byte // up to a MiB of it
	length  int
	at      time.Time         // when it had come
	hash    [sha256.Size]byte // of the whole body
}

// field returns a field of a JSON body, nil if there is none.
func (s seen) field(name string) any {
	var all object
	if json.Unmarshal(s.body, &all) != nil {
		return nil
	}
	return all[name]
}

func newBackend(t *testing.T, name string, first, ranks int, adapters []string) *backend {
	t.Helper()
	return newBackendAt(t, "127.0.0.1:0", name, first, ranks, adapters)
}

// newBackendAt is newBackend at an address; port 0 is a free one.
func newBackendAt(t *testing.T, address, name string, first, ranks int, adapters []string) *backend {
	t.Helper()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{name: name}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	b.end = sync.OnceFunc(func() {
		_ = b.http.Close()
		cancel()
		running.Wait()
	})
	t.Cleanup(b.end)
	b.first = first
	for rank := first; rank < first+ranks; rank++ {
		n, err := node.New(node.Options{
			// A prompt of the tests takes a millisecond, a token ten.
			Engine: engine.Config{BlockSize: blockSize, CacheBlocks: 16384, PrefillRate: 1e5, DecodeRate: 100, HashSeed: 1},
			Rank:   uint32(rank), Speedup: 1, NewSeed: func() uint64 { return uint64(rank) + 1 },
			Publisher: func() (node.Publisher, error) { return kvpub.Open(kvpub.Options{Bind: host}) },
		})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = n.Run(ctx) })
		b.ranks = append(b.ranks, n)
	}
	b.Server = openai.New(openai.Options{Model: model, Adapters: adapters, Ranks: b.ranks})
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	b.address = ln.Addr().String()
	b.serve(ln)
	return b
}

// serve answers at a listener until it is refused to.
func (b *backend) serve(ln net.Listener) {
	api := b.Handler()
	b.http = &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(engineHeader, b.name)
		if !strings.HasPrefix(r.URL.Path, "/v1/") {
			api.ServeHTTP(w, r) // the picker asks for tokens
			return
		}
		b.note(r)
		b.mu.Lock()
		instead := b.instead
		b.mu.Unlock()
		if instead != nil {
			instead(w, r)
		} else {
			api.ServeHTTP(w, r)
		}
	})}
	b.http.Protocols.SetHTTP1(true)
	b.http.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = b.http.Serve(ln) }() // ends with Close
}

// refuse makes the engine refuse connections.
func (b *backend) refuse() { _ = b.http.Close() }

// note reads a request and keeps it, with its body for whoever answers.
func (b *backend) note(r *http.Request) {
	hash := sha256.New()
	body, err := io.ReadAll(io.TeeReader(r.Body, hash))
	if err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	s := seen{path: r.URL.Path, header: r.Header.Clone(), trailer: r.Trailer.Clone(), length: len(body), at: time.Now(), body: body[:min(len(body), 1<<20)]}
	hash.Sum(s.hash[:0])
	b.mu.Lock()
	b.seen = append(b.seen, s)
	b.mu.Unlock()
	r.Body = io.NopCloser(strings.NewReader(string(body)))
}

// takeSeen returns the requests since the last call.
func (b *backend) takeSeen() []seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.seen
	b.seen = nil
	return all
}

// answer sets what answers in place of the engine; nil is the engine again.
func (b *backend) answer(f http.HandlerFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instead = f
}

// speed makes all ranks run at a factor of their speed. At still nothing happens.
func (b *backend) speed(t *testing.T, factor float64) {
	t.Helper()
	for _, rank := range b.ranks {
		if err := rank.Slow(factor); err != nil {
			t.Fatal(err)
		}
	}
}

// Factors for speed.
const (
	still  = 1e-6
	normal = 1
	hasty  = 1e3
)

// record is the engine's registration, but for its id.
func (b *backend) record() object {
	events, replay := object{}, object{}
	for i, n := range b.ranks {
		info := n.Info()
		rank := strconv.Itoa(b.first + i)
		events[rank], replay[rank] = info.KVEventsEndpoint, info.ReplayEndpoint
	}
	return object{
		"model_name": model, "endpoint": "http://" + b.address, "block_size": blockSize, "data_parallel_size": len(b.ranks),
		"kv_events_endpoints": events, "replay_endpoints": replay, "max_num_batched_tokens": 8192, "total_kv_blocks": 16384,
	}
}

func (b *backend) subscribers() (n int) {
	for _, rank := range b.ranks {
		n += rank.Info().Subscribers
	}
	return n
}

// renderer is a tokenizer service that answers as a test says.
type renderer struct {
	url string

	mu    sync.Mutex // guards asked
	asked []seen
}

// probe is in what the picker asks at its start, which no request is the cause of.
var probe = []byte(`[{"role":"user","content":"a"}]`)

// newRenderer answers the same, whatever is asked.
func newRenderer(t *testing.T, answer http.HandlerFunc) *renderer {
	t.Helper()
	r := &renderer{}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		if !bytes.Contains(body, probe) {
			r.mu.Lock()
			r.asked = append(r.asked, seen{path: req.URL.Path, header: req.Header.Clone(), body: body, length: len(body)})
			r.mu.Unlock()
		}
		answer(w, req)
	})}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	r.url = "http://" + ln.Addr().String()
	return r
}

func (r *renderer) takeAsked() []seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.asked
	r.asked = nil
	return all
}

// says answers with a status and a body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// tokenized is vLLM's answer of /tokenize.
func tokenized(tokens []uint32) string {
	text, err := json.Marshal(object{"count": len(tokens), "max_model_len": 1 << 20, "tokens": tokens, "token_strs": nil})
	if err != nil {
		panic(err) // a list of numbers
	}
	return string(text)
}

// only returns the one request that reached the engines since the last time, and where.
func only(t *testing.T, engines []*backend) (*backend, seen) {
	t.Helper()
	var at []*backend
	var all []seen
	for _, e := range engines {
		for _, s := range e.takeSeen() {
			at, all = append(at, e), append(all, s)
		}
	}
	if len(all) != 1 {
		t.Fatalf("%d requests reached the engines, want 1", len(all))
	}
	return at[0], all[0]
}
