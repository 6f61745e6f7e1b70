package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/codec/msgpack"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// testMemory is the memory of a test, with a budget of 64 MiB: 5 MiB for large bodies,
// 2.5 MiB for small ones and for answers, 10 MiB to serve large ones.
type testMemory struct {
	*Memory
	budget *memory.Budget
}

func newTestMemory() testMemory {
	b := memory.New(64 << 20)
	return testMemory{NewMemory(b, nil, nil), b}
}

func (m testMemory) in(o *Options) { o.Memory = m.Memory }

// empty waits until every account is empty.
func (m testMemory) empty(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the answer is there before the handler ends
		left := ""
		for _, a := range m.budget.Accounts() {
			if a.Used() != 0 {
				left += fmt.Sprintf(" %s %d", a.Name(), a.Used())
			}
		}
		switch {
		case left == "":
			return
		case time.Now().After(end):
			t.Fatal("left in accounts:" + left)
		}
	}
}

// spaced is a body of n bytes.
func spaced(n int) string { return "{" + strings.Repeat(" ", n-2) + "}" }

// forgetful is a fake that writes down no projections: the server may serve those of clients that
// have gone beside those of the next.
type forgetful struct{ *fake }

func (f forgetful) PotentialLoads(*selection.ProjectRequest) ([]selection.RankLoad, error) {
	return f.loads, nil
}

// TestAccountsEmpty: whatever becomes of a request, nothing of it is left in the
// accounts.
func TestAccountsEmpty(t *testing.T) {
	p := newTestMemory()
	const small, large = 50_000, 300_000
	long := make([]selection.RankLoad, 3000)
	base := start(t, forgetful{&fake{loads: long}}, p.in)
	faulty := start(t, &fake{call: func() { panic("fault") }}, p.in)
	aborting := start(t, &fake{call: func() { panic(http.ErrAbortHandler) }}, p.in)
	address := strings.TrimPrefix(base, "http://")
	post := func(base, path, body string, chunked bool) int {
		var r io.Reader = strings.NewReader(body)
		if chunked {
			r = io.MultiReader(r)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, r)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	// raw sends a text, reads some of the answer and goes.
	raw := func(text string, read int) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, text)
		_, _ = io.ReadFull(conn, make([]byte, read))
	}
	head := func(n int) string {
		return fmt.Sprintf("POST /potential_loads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", n)
	}
	for _, size := range []int{1000, small, large} {
		for _, chunked := range []bool{false, true} {
			for _, tc := range []struct {
				base, path, body string
				want             int
			}{
				{base, "/select", spaced(size), 200},
				{base, "/potential_loads", spaced(size), 200}, // a long answer
				{base, "/select", spaced(size)[:size-1], 400},
				{base, "/select", "[" + spaced(size-2) + "]", 422},
				{base, "/conductor/query", spaced(size), 400},
				{faulty, "/select", spaced(size), 500},
				{aborting, "/select", spaced(size), 0},
				{base, "/slots/add", spaced(2<<20 + size), 413},
			} {
				got := post(tc.base, tc.path, tc.body, chunked)
				for tries := 0; got == 0 && tc.want == 413 && tries < 10; tries++ { // a slow client loses the answer with its connection
					got = post(tc.base, tc.path, tc.body, chunked)
				}
				if got != tc.want {
					t.Errorf("%d bytes to %s: %d, want %d", len(tc.body), tc.path, got, tc.want)
				}
				p.empty(t)
			}
		}
		raw(head(size)+spaced(size)[:size/2], 0) // gone in the middle of the body
		p.empty(t)
		raw(head(size)+spaced(size), 100) // gone in the middle of the answer
		p.empty(t)
		raw(head(size)+spaced(size)+head(size)+spaced(size)+head(size), 0) // pipelined
		p.empty(t)
	}
	if resp, text := send(t, "GET", base+"/loads", nil); resp.StatusCode != 200 {
		t.Errorf("GET /loads: %d %s", resp.StatusCode, text)
	}
	p.empty(t)
}

// handle sends a request to a handler without a network.
func handle(h http.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAccountFull: what finds no memory is refused with 503 and Retry-After by the
// name of the account; what can never fit with 413. Small requests are served while
// the account of large ones is full, and the reverse.
func TestAccountFull(t *testing.T) {
	const small, large = 60_000, 200_000
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			account string
			body    int
			other   int // bytes that still have room
		}{{memory.Bodies, large, small}, {memory.Requests, small, 1000}, {memory.Requests, small, large}, {memory.Answers, 1000, 0}} {
			p := newTestMemory()
			h := New(&fake{loads: make([]selection.RankLoad, 3000)}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
			a := p.budget.Account(tt.account)
			a.Reserve(a.Limit())
			w := handle(h, "/potential_loads", spaced(tt.body))
			if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "account "+tt.account+" of --max-memory is full") {
				t.Errorf("%s: %d %v %s", tt.account, w.Code, w.Header(), w.Body)
			}
			if a.Refused() != 1 {
				t.Errorf("%s: %d refusals are counted", tt.account, a.Refused())
			}
			if w := handle(h, "/select", spaced(max(tt.other, 2))); w.Code != 200 {
				t.Errorf("%s is full: %d bytes get %d %s", tt.account, tt.other, w.Code, w.Body)
			}
			if a.Release(a.Limit()); a.Used() != 0 {
				t.Errorf("%s: %d bytes are left", tt.account, a.Used())
			}
		}
		p := newTestMemory()
		h := New(&fake{}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		if w := handle(h, "/select", spaced(6<<20)); w.Code != 413 || !strings.Contains(w.Body.String(), "--max-memory (limit=") {
			t.Errorf("a body above all memory: %d %s", w.Code, w.Body)
		}
	})
}

// TestServingTaken: a large body is refused while the gateway has taken what serving it needs,
// and its turn is another's.
func TestServingTaken(t *testing.T) {
	p := newTestMemory()
	taken := p.serving.Limit()
	p.serving.Reserve(taken)
	a := allowance{memory: p.Memory}
	if err := a.serve(t.Context(), servingFactor*(memory.SmallBody+1)); err == nil {
		t.Error("a large body is served without memory")
	}
	a.close()
	p.serving.Release(taken)
	if err := a.serve(t.Context(), p.width); err != nil {
		t.Error(err)
	}
	a.close()
	p.empty(t)
}

// TestMemoryComesBack: a request that finds no memory waits for what others give back.
func TestMemoryComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestMemory()
		h := New(&fake{}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		a := p.budget.Account(memory.Bodies)
		var all memory.Token
		if err := p.bodies.Take(t.Context(), &all, a.Limit(), memoryPatience); err != nil {
			t.Fatal(err)
		}
		done := make(chan int)
		go func() { done <- handle(h, "/select", spaced(200_000)).Code }()
		synctest.Wait()
		all.Release()
		if got := <-done; got != 200 || a.Refused() != 0 {
			t.Errorf("status %d, %d refused", got, a.Refused())
		}
	})
}

// TestLargeInTurn: of the largest bodies one is served at a time, the others wait in
// order, not for ever, and small ones need not wait.
func TestLargeInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestMemory()
		var mu sync.Mutex
		running := 0
		leave := make(chan struct{})
		f := &turns{enter: func() {
			mu.Lock()
			running++
			mu.Unlock()
			<-leave
		}}
		h := New(f, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		codes := make(chan int, 2)
		for range 2 {
			go func() { codes <- handle(h, "/select", spaced(1<<20)).Code }()
		}
		synctest.Wait()
		if running != 1 || p.serving.Used() == 0 {
			t.Errorf("%d are served, %d bytes taken", running, p.serving.Used())
		}
		go handle(h, "/select", spaced(1000))
		synctest.Wait()
		if running != 2 {
			t.Error("a small one waits")
		}
		time.Sleep(servingPatience)
		if got := <-codes; got != 503 || p.serving.Refused() != 1 {
			t.Errorf("status %d, %d refused", got, p.serving.Refused())
		}
		close(leave)
		if got := <-codes; got != 200 {
			t.Errorf("status %d", got)
		}
		synctest.Wait()
		p.empty(t)
	})
}

// turns calls enter in every selection.
type turns struct {
	Service
	enter func()
}

func (t *turns) Select(context.Context, *selection.SelectRequest, bool) (selection.Selection, error) {
	t.enter()
	return selection.Selection{}, nil
}

// TestTextReleased: a request that waits holds neither its text nor a turn.
func TestTextReleased(t *testing.T) {
	p := newTestMemory()
	h := New(releasing{t: t, testMemory: p}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
	for _, n := range []int{1000, 50_000, 1 << 20} {
		if w := handle(h, "/select_and_reserve", spaced(n)); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

// releasing is a service where each selection has to wait.
type releasing struct {
	Service
	t *testing.T
	testMemory
}

func (r releasing) Select(_ context.Context, req *selection.SelectRequest, _ bool) (selection.Selection, error) {
	req.Text.ReleaseText()
	req.Text.ReleaseText()
	r.empty(r.t)
	return selection.Selection{}, nil
}

// TestSlowGiveWay: who holds memory that others need, because the client sends or
// reads slowly, is cut off.
func TestSlowGiveWay(t *testing.T) {
	p := newTestMemory()
	base := start(t, &fake{loads: make([]selection.RankLoad, 100_000)}, p.in)
	address := strings.TrimPrefix(base, "http://")
	for _, tt := range []struct {
		account, path string
		body, part    int
		held          int64 // bytes by one client
	}{
		{memory.Bodies, "/select", 1 << 20, 1<<20 - 1, 1 << 20},
		{memory.Requests, "/select", 64 << 10, 64<<10 - 1, 64 << 10},
		{memory.Answers, "/potential_loads", 2, 2, 2 << 20}, // more than the buffers of a connection take
	} {
		a := p.budget.Account(tt.account)
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", tt.path, tt.body)
		for a.Limit()-a.Used() >= tt.held { // nobody waits yet
			before := a.Used()
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.(*net.TCPConn).SetReadBuffer(1 << 10)
			if _, err := io.WriteString(conn, head+spaced(tt.body)[:tt.part]); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); a.Used() < before+tt.held && a.Used() < a.Limit()/2; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%s: %d bytes are held", tt.account, a.Used())
				}
			}
		}
		if resp, text := send(t, "POST", base+tt.path, strings.NewReader(spaced(tt.body))); resp.StatusCode != 200 {
			t.Errorf("%s: %d %.200s", tt.account, resp.StatusCode, text)
		}
		if a.Refused() == 0 {
			t.Errorf("%s: those who are cut off are not counted", tt.account)
		}
	}
}

// TestSlowIsTold: the client that is cut off while it sends is told why at the end of
// its body.
func TestSlowIsTold(t *testing.T) {
	p := newTestMemory()
	base := start(t, &fake{}, p.in)
	address := strings.TrimPrefix(base, "http://")
	a := p.budget.Account(memory.Bodies)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const head = "POST /select HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
	_, _ = io.WriteString(conn, head+spaced(100_000)[:99_999])
	for a.Used() < 100_000 {
		time.Sleep(time.Millisecond)
	}
	var rest memory.Token
	if err := p.bodies.Take(t.Context(), &rest, a.Limit()-a.Used(), memoryPatience); err != nil {
		t.Fatal(err)
	}
	if resp, text := send(t, "POST", base+"/select", strings.NewReader(spaced(100_000))); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	rest.Release()
	_, _ = io.WriteString(conn, "}")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 503 || !resp.Close {
		t.Errorf("the slow client gets %s", resp.Status)
	}
	p.empty(t)
}

// TestWaitsBeyondSmall: a body that waits for memory to go on is not cut off for that,
// although others need what it has.
func TestWaitsBeyondSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestMemory()
		h := New(&fake{}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		bodies, requests := p.bodies.Account(), p.requests.Account()
		bodies.Reserve(bodies.Limit())
		requests.Reserve(requests.Limit()/2 + 1)

		ours, theirs := net.Pipe()
		r := httptest.NewRequest("POST", "/select", theirs)
		r.ContentLength = -1
		r.Header.Set("Content-Type", "application/json")
		w := pipeWriter{httptest.NewRecorder(), theirs}
		served := make(chan struct{})
		go func() {
			defer close(served)
			h.ServeHTTP(w, r)
		}()
		go func() {
			_, _ = io.WriteString(ours, spaced(memory.SmallBody+1))
			_ = ours.Close()
		}()
		synctest.Wait()
		if p.bodies.Try(new(memory.Token), 0) {
			t.Fatal("the body does not wait for its memory")
		}
		time.Sleep(2 * sendPatience)
		got := make(chan error)
		go func() {
			var other memory.Token
			err := p.requests.Take(t.Context(), &other, requests.Limit()/2-1, memoryPatience)
			other.Release()
			got <- err
		}()
		time.Sleep(2 * sendPatience)
		bodies.Release(bodies.Limit())
		if err := <-got; err != nil {
			t.Error(err)
		}
		if <-served; w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		_ = theirs.Close()
		requests.Release(requests.Limit()/2 + 1)
		p.empty(t)
	})
}

// TestForgoneBodyHasItsTime: a body that is read on to nowhere has no more time than others.
func TestForgoneBodyHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestMemory()
		h := New(&fake{}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		requests := p.requests.Account()
		requests.Reserve(requests.Limit())
		ours, theirs := net.Pipe()
		r := httptest.NewRequest("POST", "/select", theirs)
		r.ContentLength = memory.SmallBody
		r.Header.Set("Content-Type", "application/json")
		w := pipeWriter{httptest.NewRecorder(), theirs}
		begin := time.Now()
		h.ServeHTTP(w, r)
		if took := time.Since(begin); w.Code != http.StatusServiceUnavailable || took != bodyTimeout {
			t.Errorf("%d %s after %v", w.Code, w.Body, took)
		}
		_, _ = ours.Close(), theirs.Close()
		requests.Release(requests.Limit())
		p.empty(t)
	})
}

// pipeWriter is the answer to a request whose body comes through a pipe.
type pipeWriter struct {
	*httptest.ResponseRecorder
	body net.Conn
}

func (w pipeWriter) SetReadDeadline(t time.Time) error { return w.body.SetReadDeadline(t) }

// TestForgoneBody: a client whose chunked body cannot be read on waits for its answer, but
// not when the service stops.
func TestForgoneBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping := make(chan struct{})
		in := &incoming{allowance: allowance{memory: NewMemory(memory.New(64<<20), stopping, nil)}}
		ended := func() time.Duration {
			c, _ := gin.CreateTestContext(httptest.NewRecorder())
			c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/select", io.MultiReader())
			c.Request.ContentLength = -1
			begin, refused := time.Now(), errNoMemory(in.memory.requests.Account())
			if err := in.discardBody(c, begin.Add(bodyTimeout), refused, true); !errors.Is(err, refused) {
				t.Errorf("it ends with %v", err)
			}
			return time.Since(begin)
		}
		if took := ended(); took != discardedWait {
			t.Errorf("it ends after %v", took)
		}
		time.AfterFunc(time.Second, func() { close(stopping) })
		if took := ended(); took != time.Second {
			t.Errorf("it ends %v after the service stops", took-time.Second)
		}
	})
}

// TestPackedElements: what is made of an array of which each element is a byte takes no
// more than its turn to be served is charged.
func TestPackedElements(t *testing.T) {
	length.Sequential(t)
	const n = 1_100_000
	for name, c := range map[string]struct {
		element byte
		taken   func(*selectBody) int
	}{
		"block_mm_infos":     {msgpack.CodeNil, func(b *selectBody) int { return 24 * cap(b.req.Prompt.MM) }},
		"token_ids":          {7, func(b *selectBody) int { return 4 * cap(b.req.Prompt.TokenIDs) }},
		"allowed_worker_ids": {7, func(b *selectBody) int { return 8 * cap(b.req.AllowedWorkers) }},
		"required_taints":    {0xa0, func(b *selectBody) int { return 16 * cap(b.req.RequiredTaints) }},
	} {
		array := append(msgpack.InsertArrayLen(nil, 0, n), bytes.Repeat([]byte{c.element}, n)...)
		text := append(msgpack.AppendText(nil, name), array...)
		if name == "required_taints" {
			text = append(msgpack.AppendText(nil, "routing_constraints"), msgpack.InsertMapLen(text, 0, 1)...)
		}
		text = msgpack.InsertMapLen(text, 0, 1)
		var s bodyscan.Scanner
		var b selectBody
		if err := newSelectShape(dialect13).Decode(&s, bodyscan.Msgpack, text, &b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// Slices of large elements are a whole number of pages.
		if taken, most := c.taken(&b), servingBytes(bodyscan.Msgpack, len(text))+8<<10; taken == 0 || int64(taken) > most {
			t.Errorf("%s: %d bytes are taken, charged are %d", name, taken, most)
		}
	}
}

// held notes what is taken for answers while one is written.
type held struct {
	*httptest.ResponseRecorder
	account *memory.Account
	most    int64
}

func (h *held) Write(p []byte) (int, error) {
	h.most = max(h.most, h.account.Used())
	return h.ResponseRecorder.Write(p)
}

// TestPackedAnswers: a long answer in msgpack takes while it is written no more than the
// same one in JSON.
func TestPackedAnswers(t *testing.T) {
	p := newTestMemory()
	h := New(&fake{loads: make([]selection.RankLoad, 3000)}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
	var taken [2]int64
	for i, accept := range []string{"application/json", "application/msgpack"} {
		r := httptest.NewRequest(http.MethodPost, "/potential_loads", strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", accept)
		w := &held{ResponseRecorder: httptest.NewRecorder(), account: p.answers.Account()}
		h.ServeHTTP(w, r)
		answer := w.Body.Bytes()
		if i == 1 {
			answer = fromMsgpack(t, answer)
		}
		if w.Code != http.StatusOK || len(answer) < memory.SmallBody {
			t.Fatalf("%d, %d bytes", w.Code, len(answer))
		}
		taken[i] = w.most
	}
	if json, packed := taken[0], taken[1]; packed == 0 || packed > json+json/4 {
		t.Errorf("%d bytes are taken in msgpack, %d in JSON", packed, json)
	}
	p.empty(t)
}

// explainsSlowly blocks while it explains a selection, until it may go on, and counts those.
type explainsSlowly struct {
	Service
	at      *atomic.Int64
	proceed chan struct{}
}

func (s explainsSlowly) Select(_ context.Context, req *selection.SelectRequest, _ bool) (selection.Selection, error) {
	if !req.Explain {
		return selection.Selection{}, nil
	}
	s.at.Add(1)
	<-s.proceed
	s.at.Add(-1)
	return selection.Selection{Explanation: &selection.Explanation{Candidates: make([]selection.ExplainedRank, 300)}}, nil
}

// TestExplanations: few explanations are made at a time, while others are served.
func TestExplanations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestMemory()
		s := explainsSlowly{at: new(atomic.Int64), proceed: make(chan struct{})}
		h := New(s, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		const one = `{"explain":true}`
		var all sync.WaitGroup
		for range 10 {
			for path, body := range map[string]string{
				"/select": one, "/select_and_reserve": one, "/select_batch": `{"requests":[{"select":` + one + `},{"select":` + one + `}]}`,
			} {
				all.Go(func() {
					if w := handle(h, path, body); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "503") || w.Body.Len() < memory.SmallBody {
						t.Errorf("%s: %d %.200s", path, w.Code, w.Body)
					}
				})
			}
		}
		synctest.Wait()
		if n, most := s.at.Load(), 4*int64(max(1, runtime.GOMAXPROCS(0)/2)); n != most {
			t.Errorf("%d explanations are made at a time, want %d", n, most)
		}
		if w := handle(h, "/select", `{}`); w.Code != http.StatusOK {
			t.Errorf("another request: %d %s", w.Code, w.Body)
		}
		close(s.proceed)
		all.Wait()
		p.empty(t)
	})
}

// unread is the answer to a client that does not read, until it leaves or is cut off.
type unread struct {
	*httptest.ResponseRecorder
	end  chan struct{}
	once *sync.Once
}

func (u unread) leave() { u.once.Do(func() { close(u.end) }) }

func (u unread) Write([]byte) (int, error) {
	<-u.end
	return 0, io.ErrClosedPipe
}

func (u unread) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() {
		u.leave()
	}
	return nil
}

// sameLoads has the same loads for everybody, from any goroutine.
type sameLoads struct {
	Service
	loads []selection.RankLoad
}

func (s sameLoads) PotentialLoads(*selection.ProjectRequest) ([]selection.RankLoad, error) {
	return s.loads, nil
}

// TestSmallAnswers: answers that are longer than the buffer of a connection are bounded while
// their clients do not read, with or without the memory of their bodies, and give way.
func TestSmallAnswers(t *testing.T) {
	for _, body := range []string{spaced(100), spaced(8000), spaced(200_000)} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestMemory()
			h := New(sameLoads{loads: make([]selection.RankLoad, 500)}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
			a := p.requests.Account()
			if w := handle(h, "/potential_loads", body); w.Code != http.StatusOK || w.Body.Len() > memory.SmallBody || w.Body.Len() < memory.SmallBody/2 {
				t.Fatalf("%d, %d bytes", w.Code, w.Body.Len())
			}
			var clients []unread
			var all sync.WaitGroup
			for range 2 * int(a.Limit()) / (memory.SmallBody / 2) {
				w := unread{httptest.NewRecorder(), make(chan struct{}), new(sync.Once)}
				clients = append(clients, w)
				all.Go(func() {
					r := httptest.NewRequest("POST", "/potential_loads", strings.NewReader(body))
					r.Header.Set("Content-Type", "application/json")
					h.ServeHTTP(w, r)
				})
			}
			time.Sleep(time.Minute) // of a fake clock
			if n := a.Used(); n < a.Limit()/4 || a.Refused() == 0 {
				t.Errorf("bodies of %d bytes: %d of %d bytes are used for answers, %d were cut off", len(body), n, a.Limit(), a.Refused())
				for _, other := range p.budget.Accounts() {
					t.Logf("account %s: %d of %d bytes, %d refused", other.Name(), other.Used(), other.Limit(), other.Refused())
				}
			}
			begin := time.Now()
			if w := handle(h, "/potential_loads", spaced(60_000)); w.Code != http.StatusOK || time.Since(begin) > time.Second {
				t.Errorf("another request: %d %.200s after %v", w.Code, w.Body, time.Since(begin))
			}
			for _, w := range clients {
				w.leave()
			}
			all.Wait()
			p.empty(t)
		})
	}
}

// TestBodiesTogether: of bodies that arrive at the same time, and of which the beginnings alone fill the account,
// nearly all are served.
func TestBodiesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, clients = 200_000, 160
		p := newTestMemory()
		h := New(&turns{enter: func() {}}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		if limit := p.bodies.Account().Limit(); clients*memory.SmallBody < limit || clients*size < 5*limit {
			t.Fatalf("%d bytes are enough for all", limit)
		}
		rest := make(chan struct{})
		var served atomic.Int64
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				body := strings.NewReader(spaced(size))
				r := httptest.NewRequest(http.MethodPost, "/select", io.MultiReader(io.LimitReader(body, memory.SmallBody/2), awaited(rest), body))
				r.ContentLength = size
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code == http.StatusOK {
					served.Add(1)
				}
			})
		}
		synctest.Wait()
		close(rest)
		all.Wait()
		if n := served.Load(); n < clients*9/10 {
			t.Errorf("%d of %d are served", n, clients)
		}
		p.empty(t)
	})
}

// awaited is an empty reader that ends when its channel is closed.
type awaited chan struct{}

func (a awaited) Read([]byte) (int, error) {
	<-a
	return 0, io.EOF
}

// TestServingIsEnough: what the longest body is parsed into, and hashed and booked with blocks of two
// tokens, is not more than what is reserved for it, in the forms that take most memory for their length.
func TestServingIsEnough(t *testing.T) {
	length.Sequential(t)
	shape := newSelectShape(dialect13)
	list := func(name string, n int) string { return `"` + name + `":[1` + strings.Repeat(",1", n-1) + "]" }
	for name, text := range map[string]string{
		"tokens": "{" + list("token_ids", maxBody/2-100) + "}",
		"hashes": "{" + list("block_hashes", maxBody/4-100) + "," + list("sequence_hashes", maxBody/4-100) + "}",
	} {
		for _, f := range formats([]byte(text)) {
			var s bodyscan.Scanner
			var b selectBody
			if err := shape.Decode(&s, f.format, f.text, &b); err != nil {
				t.Fatal(err)
			}
			p := b.promptBody()
			const both, booked = 16, 8 // bytes of a block's hashes, and of its place in a booking
			took := p.size() + hashing.Layout{BlockSize: 2}.Blocks(len(p.prompt.TokenIDs))*(both+booked) + len(p.prompt.SequenceHashes)*booked
			if reserved := servingBytes(f.format, len(f.text)); int64(took) > reserved {
				t.Errorf("%s in %s: %d bytes, %d are reserved", name, f.name, took, reserved)
			} else {
				t.Logf("%s in %s: %d bytes, %.2f times as many are reserved", name, f.name, took, float64(reserved)/float64(took))
			}
		}
	}
}

// listed is a service with long lists, which counts how many are made, and how many of them are held without
// memory: those that are being made, and those that wait with a finished answer.
type listed struct {
	Service
	length        *atomic.Int64
	made          *atomic.Int64
	making, peaks *atomic.Int64
}

func (l listed) make() []selection.RankLoad {
	l.made.Add(1)
	if n := l.making.Add(1); n > l.peaks.Load() {
		l.peaks.Store(n)
	}
	defer l.making.Add(-1)
	time.Sleep(time.Millisecond) // of a fake clock: others come meanwhile
	return make([]selection.RankLoad, l.length.Load())
}

func (l listed) PotentialLoads(*selection.ProjectRequest) ([]selection.RankLoad, error) {
	return l.make(), nil
}

func (l listed) Loads(_, _ *string) []selection.ScopeLoads {
	return []selection.ScopeLoads{{Scope: catalog.Scope{Model: "m", Tenant: "t"}, Loads: l.make()}}
}

// TestLongLists: however short the last answer was, no more than maxBuilding long ones exist beyond the
// account, and a list that is dropped for want of memory comes once there is some.
func TestLongLists(t *testing.T) {
	for _, route := range []string{"GET /loads", "GET /v1.6/loads?model_name=m", "POST /potential_loads"} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestMemory()
			s := listed{length: new(atomic.Int64), made: new(atomic.Int64), making: new(atomic.Int64), peaks: new(atomic.Int64)}
			h := New(s, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
			method, path, _ := strings.Cut(route, " ")
			call := func(w http.ResponseWriter) {
				body := ""
				if method == "POST" {
					body = "{}"
				}
				r := httptest.NewRequest(method, path, strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				h.ServeHTTP(w, r)
			}
			short := httptest.NewRecorder()
			if call(short); short.Code != http.StatusOK { // others are expected to be as short
				t.Fatalf("%d %s", short.Code, short.Body)
			}
			s.length.Store(20_000) // 1 MiB or more: two fit into the account, beside a short one
			var all sync.WaitGroup
			var clients []unread
			for range 8 {
				w := unread{httptest.NewRecorder(), make(chan struct{}), new(sync.Once)}
				clients = append(clients, w)
				all.Go(func() { call(w) })
			}
			time.Sleep(time.Second)
			if n := s.peaks.Load(); n > maxBuilding {
				t.Errorf("%s: %d lists are made at a time, want %d at most", route, n, maxBuilding)
			}
			if n, most := p.answers.Account().Used(), p.answers.Account().Limit(); n == 0 || n > most {
				t.Errorf("%s: %d bytes of answers are held, want up to %d", route, n, most)
			}
			for _, w := range clients {
				w.leave()
			}
			all.Wait()
			last := httptest.NewRecorder()
			if call(last); last.Code != http.StatusOK || last.Body.Len() < 1<<20 || !json.Valid(last.Body.Bytes()) {
				t.Errorf("%s: afterwards %d, %d bytes", route, last.Code, last.Body.Len())
			}
			p.empty(t)
		})
	}
}

// TestListIsMadeAgain: a list that does not fit beside others' is not held while it waits for them.
func TestListIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestMemory()
		a := allowance{memory: p.Memory}
		limit := p.answers.Account().Limit()
		if !p.answers.Account().Reserve(limit) {
			t.Fatal("it is not empty")
		}
		made := 0
		var held []byte
		ready := make(chan error, 1)
		go func() {
			status, out, err := a.build(t.Context(), 0, nil, func(out []byte) (int, []byte, error) {
				made++
				if out != nil {
					t.Errorf("attempt %d has memory of the one before", made)
				}
				held = make([]byte, limit*2) // longer than the account: it gets all of it
				return http.StatusOK, held, nil
			})
			if status != http.StatusOK || len(out) != len(held) {
				err = fmt.Errorf("%d with %d bytes: %w", status, len(out), err)
			}
			ready <- err
		}()
		synctest.Wait()
		if made != 1 || len(ready) > 0 {
			t.Fatalf("it was made %d times, ended: %d", made, len(ready))
		}
		if !p.building.TryAcquire(maxBuilding) {
			t.Error("it holds its turn while it waits")
		} else {
			p.building.Release(maxBuilding)
		}
		p.answers.Account().Release(limit)
		if err := <-ready; err != nil || made != 2 || p.answers.Account().Used() != limit {
			t.Errorf("made %d times, %d bytes are reserved: %v", made, p.answers.Account().Used(), err)
		}
		a.close()
		p.empty(t)
	})
}
