package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/test/checks/e2e"
)

// TestBytes: a request of 10 MB and an answer of 100 MB pass unchanged, and the picker
// holds neither of the answer's bytes: its memory stays below a bound that ten answers
// at once would exceed.
func TestBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("moves a gigabyte")
	}
	const (
		sent     = 10 << 20
		answered = 100 << 20
		atOnce   = 4
		bound    = 350 // MiB
	)
	b := lay(t, setup{})
	body := encode(t, chat("Hello", object{"padding": randomText(sent)}))
	want := make(chan [sha256.Size]byte, atOnce)
	for _, e := range b.engines {
		e.answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			sum := sha256.New()
			_, _ = io.CopyN(io.MultiWriter(w, sum), rand.NewChaCha8([32]byte{1}), answered) // the client compares
			want <- sumOf(sum)
		})
	}
	err := each(t.Context(), atOnce, func(ctx context.Context, _ int) error {
		r, err := b.open(ctx, http.MethodPost, chats, body)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		sum := sha256.New()
		n, err := io.Copy(sum, r.lines)
		if err != nil || n != answered || sumOf(sum) != <-want {
			return fmt.Errorf("an answer of %d other bytes, %w", n, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, e := range b.engines {
		for _, got := range e.takeSeen() {
			if got.hash != sha256.Sum256(body) {
				t.Errorf("engine %s got %d other bytes", e.name, got.length)
			}
		}
	}
	kilobytes, err := b.picker.Status("VmHWM")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the picker had at most %d MiB", kilobytes>>10)
	if kilobytes>>10 > bound && !e2e.Race(t) {
		t.Errorf("the picker had %d MiB, more than %d", kilobytes>>10, bound)
	}
	b.idle()
}

func sumOf(h hash.Hash) (sum [sha256.Size]byte) {
	h.Sum(sum[:0])
	return sum
}

func randomText(n int) string {
	text := make([]byte, n)
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range text {
		text[i] = ' ' + byte(rnd.IntN(95))
	}
	return string(text)
}

// TestTraffic: hundreds of streams at once, of which many are left by their clients,
// while engines break and the picker is killed and started again. In the end nothing is
// booked, and no goroutine of the picker is left.
func TestTraffic(t *testing.T) {
	streams, lasts := 500, 10*time.Minute
	if testing.Short() {
		streams, lasts = 100, 10*time.Second
	}
	b := lay(t, setup{service: []string{"--gateway-lease", "30s"}})
	for _, e := range b.engines {
		e.speed(t, 20)
	}
	goroutines := b.picker.Metric(t, "go_goroutines")
	ctx, stop := context.WithTimeout(t.Context(), lasts+e2e.Patience)
	defer stop()
	begin := time.Now()
	var ended, left atomic.Int64
	var failed failures
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 7))
			for ctx.Err() == nil {
				switch err := b.oneOf(ctx, rnd); {
				case err == nil:
					ended.Add(1)
				case ctx.Err() != nil:
				case errors.Is(err, errLeft):
					left.Add(1)
				default: // breaks and restarts
					failed.add(err)
					pause(ctx, 50*time.Millisecond)
				}
			}
		})
	}
	all.Go(func() { b.breakEngines(ctx) })
	shown := func() bool { return ended.Load() >= int64(streams) && left.Load() > 0 } // a busy machine takes longer
	for n := 1; ; n++ {
		pause(ctx, max(3*time.Second, lasts/10))
		if ctx.Err() != nil || time.Since(begin) > lasts && shown() {
			break
		}
		if n%2 == 0 {
			b.picker.Kill()
		} else {
			_ = b.picker.Signal(os.Interrupt)
			b.picker.Wait(e2e.Patience)
		}
		b.picker.Run()
		for _, record := range b.workers {
			b.picker.Must(t, http.StatusCreated, http.MethodPost, "/workers", record, nil)
		}
	}
	stop()
	all.Wait()
	t.Logf("%d answers came to their end, %d clients left; failed: %v", ended.Load(), left.Load(), failed.by)
	if !shown() {
		t.Error("the traffic shows nothing")
	}
	b.idle()
	b.awaitMetric("select_service_gateway_streams", 0)
	if testing.Short() {
		return // idle connections to tokenizers stay for 90 s
	}
	e2e.Eventually(t, "the picker's goroutines have ended", func() error {
		b.picker.HTTP.CloseIdleConnections()
		if n := b.picker.Metric(t, "go_goroutines"); n > goroutines+20 {
			return fmt.Errorf("%d, before %d", n, goroutines)
		}
		return nil
	})
}

// failures counts errors by their text.
type failures struct {
	mu sync.Mutex // guards by
	by map[string]int
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = make(map[string]int)
	}
	text := err.Error()
	f.by[text[max(0, len(text)-90):]]++ // without addresses
}

var errLeft = errors.New("the client has left")

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// oneOf sends a request of some kind and reads the answer, or leaves it.
func (b *bed) oneOf(ctx context.Context, rnd *rand.Rand) error {
	leaves := rnd.IntN(4) == 0
	if leaves {
		var leave context.CancelFunc
		ctx, leave = context.WithTimeout(ctx, time.Duration(rnd.IntN(200))*time.Millisecond)
		defer leave()
	}
	text := words(uint32(rnd.IntN(20)), 100+rnd.IntN(1000))
	body, path := chat(text, object{"max_tokens": 1 + rnd.IntN(200)}), chats
	switch rnd.IntN(10) {
	case 0:
		body, path = object{"model": model, "prompt": tokenize(text), "max_tokens": 5}, completions
	case 1:
		body["model"] = "nobody's"
	case 2, 3:
	default:
		body["stream"] = true
	}
	a, err := b.send(ctx, http.MethodPost, path, body)
	switch {
	case leaves && ctx.Err() != nil:
		return errLeft
	case err != nil:
		return err
	case a.status >= 500:
		return fmt.Errorf("%v", a)
	}
	return nil
}

// breakEngines lets the engines break now and then, until ctx ends.
func (b *bed) breakEngines(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(3, 3))
	for ctx.Err() == nil {
		e := b.engines[rnd.IntN(len(b.engines))]
		e.SetFaults([]simapi.Faults{{Status: 500}, {Reset: true}, {Reset: true, ResetTokens: 20}}[rnd.IntN(3)])
		pause(ctx, 100*time.Millisecond)
		e.SetFaults(simapi.Faults{})
		pause(ctx, time.Second)
	}
}

// TestClients plays the scenarios of the openai package, see openai_client.py, and curl.
func TestClients(t *testing.T) {
	python := os.Getenv(pythonEnv)
	b := lay(t, setup{})
	if python == "" {
		t.Skipf("needs a Python with the openai package: make test-gateway sets %s", pythonEnv)
	}
	t.Run("openai", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), e2e.Patience)
		defer cancel()
		client := exec.CommandContext(ctx, python, "openai_client.py", b.envoy.url+"/v1", model, b.engines[0].address, b.engines[1].address)
		if out, err := client.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		b.idle()
	})
	t.Run("curl", func(t *testing.T) {
		for name, args := range map[string][]string{
			"whole":   {"-d", string(encode(t, chat("Hello")))},
			"stream":  {"-N", "-d", string(encode(t, chat("Hello", streamed)))},
			"expect":  {"-H", "Expect: 100-continue", "-d", string(encode(t, chat(words(1, 20_000))))},
			"chunked": {"-H", "Transfer-Encoding: chunked", "-d", string(encode(t, chat("Hello")))},
			"http2":   {"--http2-prior-knowledge", "-d", string(encode(t, chat("Hello")))},
		} {
			curl := exec.CommandContext(t.Context(), "curl", append([]string{"-sS", "--fail-with-body", "-w", "%{stderr}%{http_code}", b.envoy.url + chats}, args...)...)
			var stderr bytes.Buffer
			curl.Stderr = &stderr
			out, err := curl.Output()
			if status, _ := strconv.Atoi(stderr.String()); err != nil || status != http.StatusOK || !bytes.Contains(out, []byte("choices")) {
				t.Errorf("%s: %v, %s %s", name, err, stderr.String(), out)
			}
		}
		b.idle()
	})
}
