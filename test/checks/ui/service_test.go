package ui

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"
)

// start starts the service and returns its address. stop ends it before the test does.
func start(t *testing.T, args ...string) (base string, stop func()) {
	t.Helper()
	base, _, stop = launch(t, args...)
	return base, stop
}

// launch is start, and returns the id of the process, too.
func launch(t *testing.T, args ...string) (base string, pid int, stop func()) {
	t.Helper()
	program := os.Getenv("SELECT_SERVICE_BIN")
	if program == "" {
		program = "../../../bin/select-service"
	}
	cmd := exec.Command(program, append([]string{"--listen", "127.0.0.1", "--port", "0", "--log-format", "json"}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("%v: make build", err)
	}
	found := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			var line struct{ Message, Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "listening" {
				select {
				case found <- line.Address:
				default:
				}
			}
		}
		_ = cmd.Wait()
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	t.Cleanup(stop)
	select {
	case address := <-found:
		return "http://" + address, cmd.Process.Pid, stop
	case <-ended:
		t.Fatal("the service does not start")
	case <-time.After(patience):
		t.Fatal("the service does not listen")
	}
	return "", 0, stop
}
