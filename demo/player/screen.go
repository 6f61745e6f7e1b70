package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// screen shows the progress of one policy's play: a bar on a terminal, else a line at
// every fifth of the way.
type screen struct {
	out    io.Writer
	bar    bool
	name   string
	total  int
	show   int // print the decision of every show-th request; 0: of none
	begun  time.Time
	redraw time.Duration

	// mu guards the fields below and the order of output.
	mu    sync.Mutex
	drawn time.Time
	step  int
	line  string // the bar as drawn
}

const (
	barWidth = 30
	steps    = 5 // lines of progress without a terminal
)

func newScreen(out io.Writer, name string, total int) *screen {
	return &screen{
		out: out, bar: isTerminal(out), name: name, total: total,
		begun: time.Now(), redraw: 100 * time.Millisecond,
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress is called after each finished request.
func (s *screen) progress(done, failed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar {
		if now := time.Now(); done == s.total || now.Sub(s.drawn) >= s.redraw {
			s.drawn = now
			full := barWidth * done / s.total
			s.line = fmt.Sprintf("%-15s [%s%s] %s", s.name, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), s.count(done, failed))
			fmt.Fprint(s.out, "\r\x1b[K", s.line)
		}
		return
	}
	if step := steps * done / s.total; step > s.step {
		s.step = step
		fmt.Fprintf(s.out, "%-15s %s\n", s.name, s.count(done, failed))
	}
}

func (s *screen) count(done, failed int) string {
	text := fmt.Sprintf("%s/%s requests, %.0f s", stats.Thousands(done), stats.Thousands(s.total), time.Since(s.begun).Seconds())
	if failed > 0 {
		text += fmt.Sprintf(", %d failed", failed)
	}
	return text
}

// decision prints a choice and its outcome, for every show-th request.
func (s *screen) decision(r *workload.Request, at placement, first simapi.Step) {
	if s.show == 0 || r.ID%s.show != 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar {
		fmt.Fprint(s.out, "\r\x1b[K")
	}
	fmt.Fprintf(s.out, "  request %d → worker %d: %s of %s tokens cached (the service counted on %s), first token after %s ms\n",
		r.ID, at.engine+1, stats.Thousands(first.CachedTokens), stats.Thousands(len(r.Prompt)), stats.Thousands(at.expected), stats.Thousands(int(first.TTFTMS)))
	if s.bar {
		fmt.Fprint(s.out, s.line)
	}
}

func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar {
		fmt.Fprintln(s.out)
	}
}
