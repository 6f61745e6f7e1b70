package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/select-service/select-service/demo/sim/proc"
)

const loopback = "127.0.0.1"

// Patience with programs that start and stop.
const (
	patience  = time.Minute
	pollEvery = 100 * time.Millisecond
	grace     = 5 * time.Second
)

// programs are the paths of what is run.
type programs struct {
	service, engine, envoy, smg, vllmRouter string
	envoyConfig                             string
}

// world is the engines and the gateways of one contestant in one round.
type world struct {
	programs
	play    *play
	dir     string // of configurations and logs
	engines []engine
	// withoutAnswers: Envoy sends the picker no bodies of responses.
	withoutAnswers bool
	// firstTokens: a second filter shows it the answers up to their first tokens.
	firstTokens bool
	first       []string // the command of the first engine, which has a process of its own

	mu       sync.Mutex // guards running
	running  []*process // in the order of their start
	measured []*process
}

type engine struct {
	port                int
	url, events, replay string
}

type process struct {
	cmd  *exec.Cmd
	name string
	done chan struct{} // closed when it has ended
}

func (w *world) gateways() int { return max(1, w.play.gateways) }

func (w *world) engineURLs() (urls []string) {
	for _, e := range w.engines {
		urls = append(urls, e.url)
	}
	return urls
}

// play plays one round of some contestants, all at once.
func (c *config) play(ctx context.Context, p *play, group []contestant, round int) ([]result, error) {
	worlds, urls := make([]*world, len(group)), make([][]string, len(group))
	failed := func(i int, err error) error {
		return fmt.Errorf("%s, %s, round %d (logs in %s): %w", p.name, group[i].name, round+1, worlds[i].dir, err)
	}
	for i, who := range group { // one after the other: each finds free ports
		w := &world{programs: c.programs, play: p, dir: filepath.Join(c.out, "logs", fmt.Sprintf("%s-%s-%d", p.name, who.name, round+1))}
		worlds[i] = w
		defer w.stop()
		var err error
		if urls[i], err = w.start(ctx, &who); err != nil {
			return nil, failed(i, err)
		}
	}
	results, errs := make([]result, len(group)), make([]error, len(group))
	var playing sync.WaitGroup
	for i := range group {
		playing.Go(func() {
			results[i] = result{Play: p.name, Contestant: group[i].name, Round: round + 1, Load1: loadAverage()}
			if err := worlds[i].measure(ctx, &results[i], urls[i], group[i].session); err != nil {
				errs[i] = failed(i, err)
			}
		})
	}
	playing.Wait()
	return results, errors.Join(errs...)
}

// start starts the engines and the gateways of a contestant, and returns the gateways' URLs.
func (w *world) start(ctx context.Context, who *contestant) ([]string, error) {
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return nil, err
	}
	if err := w.startEngines(ctx); err != nil {
		return nil, err
	}
	return who.start(ctx, w)
}

// measure plays the load through gateways, and fills in the result. session is the contestant's header.
func (w *world) measure(ctx context.Context, r *result, urls []string, session string) error {
	p := w.play
	cpu, envoy, err := w.cpu()
	if err != nil {
		return err
	}
	t := p.traffic
	t.Seed += uint64(r.Round - 1)
	t.Engines, t.Session = w.engineURLs(), session
	var disturbed sync.WaitGroup
	if p.restart {
		disturbed.Go(func() { r.disturbed = w.restartFirst(ctx, t.Duration/2) })
	}
	played, err := t.Play(ctx, urls...)
	disturbed.Wait()
	if err = errors.Join(err, r.disturbed); err != nil {
		return err
	}
	after, envoyAfter, err := w.cpu()
	if err != nil {
		return err
	}
	rss, err := w.rss()
	r.fill(&played, after-cpu, envoyAfter-envoy, rss)
	return err
}

func (w *world) startEngines(ctx context.Context) error {
	n := w.play.engines
	// Each engine has a port, its events and their replays the next two.
	base, err := block(3 * n)
	if err != nil {
		return err
	}
	for i := range n {
		port, events := base+i, base+n+2*i
		w.engines = append(w.engines, engine{
			port: port, url: fmt.Sprintf("http://%s:%d", loopback, port),
			events: fmt.Sprintf("tcp://%s:%d", loopback, events), replay: fmt.Sprintf("tcp://%s:%d", loopback, events+1),
		})
	}
	prefill, decode := w.play.prefill, 50.0
	if prefill == 0 {
		prefill, decode = 1e9, 1e9
	}
	if w.play.decode > 0 {
		decode = w.play.decode
	}
	command := func(first, count int, more ...string) []string {
		args := []string{
			w.engine, "--engines", fmt.Sprint(count), "--port", fmt.Sprint(base + first), "--events-port", fmt.Sprint(base + n + 2*first), "--model", model,
			"--block-size", fmt.Sprint(blockSize), "--cache-blocks", fmt.Sprint(w.play.cacheBlocks), "--prefill-rate", fmt.Sprint(prefill), "--decode-rate", fmt.Sprint(decode),
		}
		if w.play.chunked {
			args = append(args, "--chunked")
		}
		if w.play.eachToken {
			args = append(args, "--each-token")
		}
		return append(args, more...)
	}
	w.first = command(0, 1)
	if w.play.speed > 0 {
		w.first = command(0, 1, "--speed", fmt.Sprint(w.play.speed))
	}
	if _, err := w.run("engine-1", nil, w.first...); err != nil {
		return err
	}
	if _, err := w.run("engines", nil, command(1, n-1)...); err != nil {
		return err
	}
	for _, url := range w.engineURLs() {
		if err := w.await(ctx, url+"/health", func(status int, _ string) bool { return status == http.StatusOK }); err != nil {
			return err
		}
	}
	return nil
}

// restartFirst kills the first engine, and starts it again.
func (w *world) restartFirst(ctx context.Context, after time.Duration) error {
	for i, wait := range []time.Duration{after, restartAfter} {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		if i == 0 {
			w.mu.Lock()
			first := w.running[0]
			w.mu.Unlock()
			if err := first.cmd.Process.Kill(); err != nil {
				return err
			}
		}
	}
	_, err := w.run("engine-1-again", nil, w.first...)
	return err
}

// startGateway runs a process whose CPU time and memory count.
func (w *world) startGateway(name string, env []string, command string, args ...string) error {
	p, err := w.run(name, env, append([]string{command}, args...)...)
	if err == nil {
		w.measured = append(w.measured, p)
	}
	return err
}

// run starts a process with its output in a file.
func (w *world) run(name string, env []string, command ...string) (*process, error) {
	out, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has it open
	fmt.Fprintln(out, strings.Join(append(env, command...), " "))
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), out, out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, name: name, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended does not matter
		close(p.done)
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = append(w.running, p)
	return p, nil
}

// stop ends all processes, the last one first.
func (w *world) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.running) - 1; i >= 0; i-- {
		p := w.running[i]
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended
		select {
		case <-p.done:
		case <-time.After(grace):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
}

// await asks an address until its answer is good.
func (w *world) await(ctx context.Context, url string, good func(status int, body string) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s does not say what it should within %s", url, patience))
	defer cancel()
	for {
		status, body, err := get(ctx, url)
		if err == nil && good(status, body) {
			return nil
		}
		if err := w.ended(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %d, %q", errors.Join(context.Cause(ctx), err), status, body)
		case <-time.After(pollEvery):
		}
	}
}

// ended returns an error that names a process which has ended.
func (w *world) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.running {
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended", p.name)
		default:
		}
	}
	return nil
}

func get(ctx context.Context, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(text), err
}

// cpu returns the CPU time of the gateways' processes, and of those among them that are Envoys.
func (w *world) cpu() (sum, envoys time.Duration, err error) {
	for _, p := range w.measured {
		d, err := proc.CPU(p.cmd.Process.Pid)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", p.name, err)
		}
		sum += d
		if p.cmd.Args[0] == w.programs.envoy {
			envoys += d
		}
	}
	return sum, envoys, nil
}

// rss returns the most memory that the gateways' processes had resident, in bytes.
func (w *world) rss() (sum int64, err error) {
	for _, p := range w.measured {
		n, err := proc.PeakRSS(p.cmd.Process.Pid)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", p.name, err)
		}
		sum += n
	}
	return sum, nil
}

// ports returns free ports.
func ports(n int) (list []int, err error) {
	for range n {
		l, err := net.Listen("tcp", loopback+":0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // none is drawn twice
		list = append(list, l.Addr().(*net.TCPAddr).Port)
	}
	return list, nil
}

// block returns the first of n free ports that follow each other, below those that the system
// gives to outgoing connections.
func block(n int) (int, error) {
	for first := 20_000; first+n < 32_000; first += n {
		if free(first, n) {
			return first, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports", n)
}

func free(first, n int) bool {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", loopback, port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
