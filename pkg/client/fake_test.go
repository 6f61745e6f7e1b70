package client_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/client"
)

// fault is what happens to a request instead of an answer, or to its answer: act
// does what was asked.
type fault func(w http.ResponseWriter, r *http.Request, act http.HandlerFunc)

// fake keeps reservations as the service does, as far as a client can tell.
type fake struct {
	*httptest.Server
	connections atomic.Int64

	mu       sync.Mutex // guards all below
	faults   []fault    // of the next requests; nil: none
	seen     []string   // method and path of requests, in the order of arrival
	bodies   []string
	live     map[string]string // first answers by id
	outputs  int
	prefills int
	hooks    map[string]func() // by method and end of the path: run before the request is done

	onlyJSON bool     // other bodies are refused
	types    []string // of bodies, as they came

	leaseSeconds string // of answers, instead of what was asked for; "" changes nothing
}

func newFake() *fake { return &fake{live: map[string]string{}, hooks: map[string]func(){}} }

func serve(t *testing.T) *fake {
	t.Helper()
	f := newFake()
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.handle))
	f.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			f.connections.Add(1)
		}
	}
	f.Start()
	t.Cleanup(f.Close)
	return f
}

// RoundTrip lets a client call it without a network, in a bubble of synctest.
func (f *fake) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	defer func() {
		if recover() != nil || r.Context().Err() != nil {
			answer, err = nil, io.ErrUnexpectedEOF
		}
	}()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	f.handle(w, r)
	return w.Result(), nil
}

// direct returns a client that calls it without a network, with the waits of the
// real one.
func (f *fake) direct(t *testing.T, change ...func(*client.Options)) *client.Client {
	t.Helper()
	opt := client.Options{HTTP: &http.Client{Transport: f}}
	for _, c := range change {
		c(&opt)
	}
	c, err := client.New("http://fake", opt)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// client returns one that repeats soon.
func (f *fake) client(t *testing.T, change ...func(*client.Options)) *client.Client {
	t.Helper()
	soon := client.Backoff{Attempts: 3, Base: time.Millisecond, Jitter: time.Millisecond, Max: time.Second}
	opt := client.Options{Retry: &client.Retry{Overload: soon, Connection: soon}}
	for _, c := range change {
		c(&opt)
	}
	c, err := client.New(f.URL, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (f *fake) handle(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.seen = append(f.seen, r.Method+" "+strings.TrimPrefix(r.URL.EscapedPath(), "/v1.6"))
	var now fault
	if len(f.faults) > 0 {
		now, f.faults = f.faults[0], f.faults[1:]
	}
	hook := f.hooks[r.Method+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	if now != nil {
		now(w, r, f.act)
		return
	}
	f.act(w, r)
}

func (f *fake) act(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Header.Get("Content-Type") == "application/msgpack" {
		if f.types = append(f.types, "msgpack"); f.onlyJSON {
			refuse(w, http.StatusUnsupportedMediaType, `{"error":"JSON only"}`)
			return
		}
		body = asJSON(body)
	} else {
		f.types = append(f.types, r.Header.Get("Content-Type"))
	}
	f.bodies = append(f.bodies, string(body))
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/v1.6/")
	parts := strings.Split(path, "/")
	switch {
	case path == "select_and_reserve" || path == "select_pair" || path == "reservations":
		f.book(w, body)
	case path == "select_batch":
		_, _ = io.WriteString(w, `{"results":[{"status":200,"body":{"worker_id":1}},{"status":503,"body":{"error":"busy","message":"all busy","type":"service_unavailable","code":503},"retry_after":"2"}]}`)
	case path == "select":
		_, _ = io.WriteString(w, `{"worker_id":1}`)
	case parts[0] == "reservations":
		id := parts[1]
		if _, ok := f.live[id]; !ok {
			refuse(w, http.StatusNotFound, `{"error":"reservation not found"}`)
			return
		}
		switch {
		case r.Method == http.MethodDelete:
			delete(f.live, id)
		case parts[2] == "output_block":
			f.outputs++
		case parts[2] == "prefill_complete":
			f.prefills++
		}
		_, _ = io.WriteString(w, `{"status":"ok"}`)
	default:
		_, _ = io.WriteString(w, `[]`)
	}
}

// asJSON turns a body in msgpack into JSON; byte strings are the words of a prompt.
func asJSON(body []byte) []byte {
	var members map[string]any
	if err := msgpack.Unmarshal(body, &members); err != nil {
		panic(err)
	}
	fromWords(members)
	if requests, ok := members["requests"].([]any); ok {
		for _, r := range requests {
			fromWords(r.(map[string]any)["select"].(map[string]any))
		}
	}
	text, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return text
}

// fromWords makes lists of the byte strings of a request.
func fromWords(members map[string]any) {
	for name, v := range members {
		words, ok := v.([]byte)
		if !ok {
			continue
		}
		list := []any{}
		for len(words) > 0 {
			if name == "token_ids" {
				list, words = append(list, binary.LittleEndian.Uint32(words)), words[4:]
			} else {
				list, words = append(list, int64(binary.LittleEndian.Uint64(words))), words[8:]
			}
		}
		members[name] = list
	}
}

func (f *fake) book(w http.ResponseWriter, body []byte) {
	var b struct {
		ID       string  `json:"selection_id"`
		IfExists string  `json:"if_exists"`
		Lease    float64 `json:"lease_seconds"`
	}
	if err := json.Unmarshal(body, &b); err != nil || b.ID == "" {
		refuse(w, http.StatusBadRequest, `{"error":"bad body"}`)
		return
	}
	first, ok := f.live[b.ID]
	if ok && b.IfExists != "return" {
		refuse(w, http.StatusConflict, `{"error":"taken"}`)
		return
	}
	if !ok {
		seconds := f.leaseSeconds
		if seconds == "" {
			seconds = fmt.Sprint(b.Lease)
		}
		first = fmt.Sprintf(`{"selection_id":%q,"worker_id":18446744073709551615,"endpoint":"http://e","lease_seconds":%s}`, b.ID, seconds)
		f.live[b.ID] = first
	}
	_, _ = io.WriteString(w, first)
}

func (f *fake) next(faults ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults, f.seen = faults, nil
}

func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.seen...)
}

func (f *fake) booked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

// left are the ids of live reservations.
func (f *fake) left() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.live))
}

func (f *fake) hook(what string, run func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooks[what] = run
}

func refuse(w http.ResponseWriter, status int, body string) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// answers gives an answer in place of the service.
func answers(status int, body string, header ...string) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		refuse(w, status, body)
	}
}

// lostBefore closes the connection instead of acting, lostAfter instead of
// answering, half in the middle of the answer.
func lostBefore(http.ResponseWriter, *http.Request, http.HandlerFunc) { panic(http.ErrAbortHandler) }

func lostAfter(_ http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
	act(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

func half(w http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
	whole := httptest.NewRecorder()
	act(whole, r)
	w.Header().Set("Content-Length", fmt.Sprint(whole.Body.Len()))
	_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func garbage(w http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
	act(httptest.NewRecorder(), r)
	_, _ = io.WriteString(w, "<html>")
}

// another's answer: a proxy that mixes them up.
func another(w http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
	act(httptest.NewRecorder(), r)
	_, _ = io.WriteString(w, `{"selection_id":"another"}`)
}

// silent does not answer until the client goes.
func silent(_ http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
	act(httptest.NewRecorder(), r)
	<-r.Context().Done()
}

const overloaded = `{"error":"busy","message":"all busy","type":"service_unavailable","code":503}`
