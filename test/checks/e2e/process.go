package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Process is a running service. Its methods may be called from any goroutine.
type Process struct {
	cmd     *exec.Cmd
	address string
	output  *output
	ended   chan struct{} // closed when code is set
	code    int
}

// Options say how to start a service.
type Options struct {
	// Command is the program and its arguments.
	Command []string
	// Env is added to the environment of the test, from which every variable
	// that the service reads is taken out.
	Env map[string]string
	// Stderr is its standard error; nil for Output.
	Stderr *os.File
	// Address is where it will listen, host:port; only for Address.
	Address string
}

// Start starts a process and ends it, if it still runs, when the test does.
func Start(tb testing.TB, opt Options) *Process {
	tb.Helper()
	p := &Process{address: opt.Address, output: &output{}, ended: make(chan struct{})}
	p.cmd = exec.Command(opt.Command[0], opt.Command[1:]...)
	p.cmd.Env = environment(opt.Env)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if opt.Stderr != nil {
		p.cmd.Stderr = opt.Stderr
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for the tests
	if err := p.cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", opt.Command[0], err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code says it
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	tb.Cleanup(func() {
		p.Stop()
		if strings.Contains(p.Output(), "WARNING: DATA RACE") {
			tb.Errorf("the service has a data race: %s", p.Output())
		}
	})
	return p
}

func environment(extra map[string]string) []string {
	env := []string{"RUST_LOG=off"}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "DYN_") && !strings.HasPrefix(kv, "SELECT_SERVICE_") {
			env = append(env, kv)
		}
	}
	for k, v := range extra {
		env = append(env, k+"="+v)
	}
	return env
}

// Address is where it listens, host:port.
func (p *Process) Address() string { return p.address }

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what it has written so far to its standard output and error.
func (p *Process) Output() string { return p.output.String() }

// Signal sends it a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Wait waits for it to end, but not longer than d. The exit code is -1 after a
// signal that it did not handle.
func (p *Process) Wait(d time.Duration) (exitCode int, ended bool) {
	select {
	case <-p.ended:
		return p.code, true
	case <-time.After(d):
		return 0, false
	}
}

// gentle is how long Stop waits before it kills. The service has at most five seconds
// for its end on an idle machine.
const gentle = time.Minute

// Stop ends it: an interrupt first, after a minute without mercy.
func (p *Process) Stop() {
	select {
	case <-p.ended:
		return
	default:
	}
	_ = p.Signal(os.Interrupt) // it may have ended just now
	if _, ended := p.Wait(gentle); !ended {
		p.Kill()
	}
}

// Kill ends it at once, without a chance to clean up.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended just now
	<-p.ended
}

// Status is a field of /proc/<pid>/status, such as Threads.
func (p *Process) Status(field string) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("process status: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if name == field {
			return strconv.Atoi(strings.Fields(value)[0])
		}
	}
	return 0, fmt.Errorf("process status has no field %s", field)
}

// CPU is the time of the processor that the process has used, to a hundredth of a second.
func (p *Process) CPU() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, err
	}
	var user, system int64
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the state on, the third
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, err
	}
	return time.Duration(user+system) * time.Second / 100, nil
}

// Descriptors is the number of its open files and sockets.
func (p *Process) Descriptors() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("open descriptors: %w", err)
	}
	return len(entries), nil
}

// output collects what a process writes.
type output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Ports below those that the kernel gives to outgoing connections.
const (
	firstPort = 20000
	ports     = 10000
)

var (
	// lastPort starts at another place in every test binary, as several run at once.
	lastPort = func() *atomic.Uint32 {
		var n atomic.Uint32
		n.Store(uint32(os.Getpid()) * 97)
		return &n
	}()

	// claimsMu guards claims.
	claimsMu sync.Mutex
	claims   []net.Listener
)

// FreePort returns a TCP port that nobody listens at. It belongs to this test binary
// until that ends, also while nothing listens there: a restarted service finds it free.
func FreePort(tb testing.TB) int {
	tb.Helper()
	for range ports {
		port := firstPort + int(lastPort.Add(1)%ports)
		// The name is the claim, for all tests that run on this machine. The kernel
		// takes it back with the process.
		claim, err := net.Listen("unix", fmt.Sprintf("@select-service-test-port-%d", port))
		if err != nil {
			continue
		}
		if !canListen(port) {
			_ = claim.Close()
			continue
		}
		claimsMu.Lock()
		claims = append(claims, claim)
		claimsMu.Unlock()
		return port
	}
	tb.Fatal("no free port")
	return 0
}

// canListen reports whether a port is free, and leaves it free: no program is started
// meanwhile. A child would have the socket too, until it has become that program, and the
// port would be in use after our Close.
func canListen(port int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return false
	}
	_ = ln.Close()
	return true
}
