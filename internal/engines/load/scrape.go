package load

import (
	"bufio"
	"container/heap"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// atATime bounds the pages that are read at a time, over all workers.
	atATime = 64
	// patience is the time for one page.
	patience = time.Second
	// rarest is how often a page is read that fails again and again.
	rarest = time.Minute
)

// Scraper reads the metrics pages of engines, each again and again: one page of a worker at a
// time, 64 over all workers, each within a second, and less often while a page fails.
type Scraper struct {
	sink     Sink
	counters *Counters
	client   *engines.Client
	patience time.Duration // for one page
	buffers  sync.Pool     // of *bufio.Reader
	wake     chan struct{} // capacity 1: something is due earlier, or may begin

	// mu guards what follows, and all fields of targets and pages but a target's own.
	mu      sync.Mutex
	targets map[uint64]*target // by worker
	due     pageHeap
	running int
	failing int // pages
	pages   int
}

// target has the pages of one worker.
type target struct {
	worker  uint64
	given   []catalog.LoadPage
	pages   []*page
	busy    bool    // one of its pages is being read
	waiting []*page // due meanwhile
	cancel  context.CancelFunc
	ctx     context.Context //nolint:containedctx // ends with the target

	// reporting is held while the sink is called. It guards gone: nothing more is reported.
	reporting sync.Mutex
	gone      bool
}

// page is a page with its state.
type page struct {
	catalog.LoadPage
	of       *target
	at       time.Time // when it is due
	failures int       // in a row
	index    int       // in the heap, -1: not in it
}

// NewScraper returns a Scraper without pages. Nothing is read before Run, at whose end the client is
// closed.
func NewScraper(client *engines.Client, sink Sink, counters *Counters) *Scraper {
	s := &Scraper{
		client: client, sink: sink, counters: counters, patience: patience,
		wake: make(chan struct{}, 1), targets: make(map[uint64]*target),
	}
	s.buffers.New = func() any { return bufio.NewReaderSize(nil, maxLine) }
	return s
}

// Set makes the given pages those of a worker, none to begin with. When it returns, the sink gets
// nothing more from pages that are not among them.
func (s *Scraper) Set(worker uint64, pages []catalog.LoadPage) {
	s.mu.Lock()
	was := s.targets[worker]
	if was == nil && len(pages) == 0 || was != nil && slices.Equal(was.given, pages) {
		s.mu.Unlock()
		return
	}
	delete(s.targets, worker)
	if was != nil {
		was.cancel()
		s.pages -= len(was.pages)
		for _, p := range was.pages {
			if p.failures > 0 {
				s.failing--
			}
			if p.index >= 0 {
				heap.Remove(&s.due, p.index)
			}
		}
	}
	s.mu.Unlock()
	if was != nil {
		was.end(s.sink)
	}
	if len(pages) == 0 {
		return
	}
	t := &target{worker: worker, given: slices.Clone(pages)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets[worker] = t
	for _, p := range pages {
		added := &page{LoadPage: p, of: t, index: -1, at: now.Add(rand.N(p.Interval))}
		t.pages = append(t.pages, added)
		heap.Push(&s.due, added)
	}
	s.pages += len(pages)
	s.wakeUp()
}

// end makes a target report nothing any more.
func (t *target) end(sink Sink) {
	t.reporting.Lock()
	defer t.reporting.Unlock()
	t.gone = true
	for _, p := range t.given {
		for i := range p.Ranks {
			sink.Remove(catalog.Rank{Worker: t.worker, DP: p.FirstRank + i}, Scrape)
		}
	}
}

// Pages returns how many pages are read, and how many of them failed when they were last read.
func (s *Scraper) Pages() (good, failing int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pages - s.failing, s.failing
}

func (s *Scraper) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // it will wake up
	}
}

// Run reads pages until ctx ends. When it returns, no goroutine of it is left.
func (s *Scraper) Run(ctx context.Context) error {
	defer s.client.Close()
	var reading sync.WaitGroup
	defer reading.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.begin(ctx, &reading))
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// begin begins to read the pages that are due, and returns when the next one is.
func (s *Scraper) begin(ctx context.Context, reading *sync.WaitGroup) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.due) > 0 && s.running < atATime {
		p, now := s.due[0], time.Now()
		if wait := p.at.Sub(now); wait > 0 {
			return wait
		}
		heap.Pop(&s.due)
		if p.of.busy {
			p.of.waiting = append(p.of.waiting, p)
			continue
		}
		p.of.busy = true
		s.running++
		reading.Go(func() { s.finish(p, now, s.scrape(ctx, p)) })
	}
	return time.Hour // or until woken
}

// finish notes the end of a reading.
func (s *Scraper) finish(p *page, begun time.Time, result ScrapeResult) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.wakeUp()
	t := p.of
	if s.targets[t.worker] != t {
		return
	}
	s.counters.scrapes[result].Add(1)
	s.counters.seconds.Observe(now.Sub(begun).Seconds())
	s.failing -= metrics.OneIf(p.failures > 0)
	if p.failures++; result == ScrapeOK {
		p.failures = 0
	}
	s.failing += metrics.OneIf(p.failures > 0)
	p.at = begun.Add(p.wait())
	heap.Push(&s.due, p)
	t.busy = false
	for _, w := range t.waiting {
		heap.Push(&s.due, w)
	}
	t.waiting = nil
}

// wait returns the time from one reading to the next: the interval, doubled for each failure in a
// row, up to a minute.
func (p *page) wait() time.Duration {
	wait := p.Interval
	for range p.failures {
		if wait >= rarest {
			break
		}
		wait = min(2*wait, rarest)
	}
	return wait
}

// scrape reads a page and reports what it says.
func (s *Scraper) scrape(ctx context.Context, p *page) ScrapeResult {
	defer context.AfterFunc(ctx, p.of.cancel)() // the target ends with Run
	ctx, cancel := context.WithTimeout(p.of.ctx, s.patience)
	defer cancel()
	reports, err := s.read(ctx, p) //nolint:contextcheck // the target has a context of its own
	at, result := time.Now(), resultOf(err)
	t := p.of
	t.reporting.Lock()
	defer t.reporting.Unlock()
	// An engine that takes too long may hang, which its last report and the lack of another one show.
	// Other failures say nothing about the engine's work.
	for dp := range p.Ranks {
		if result != ScrapeOK && result != ScrapeTimeout && !t.gone {
			s.sink.Pause(catalog.Rank{Worker: t.worker, DP: p.FirstRank + dp}, Scrape)
		}
	}
	if result != ScrapeOK || t.gone {
		return result
	}
	for dp, report := range reports {
		s.counters.reports[Scrape].Add(1)
		s.sink.Report(catalog.Rank{Worker: t.worker, DP: dp}, report, at)
	}
	return ScrapeOK
}

func resultOf(err error) ScrapeResult {
	if err == nil {
		return ScrapeOK
	}
	_, status := errors.AsType[*engines.StatusError](err)
	_, refused := errors.AsType[*engines.AddressError](err)
	switch {
	case status:
		return ScrapeStatus
	case errors.Is(err, engines.ErrTooLong):
		return ScrapeTooLarge
	case errors.Is(err, errUseless):
		return ScrapeUseless
	case errors.Is(err, engines.ErrRedirect):
		return ScrapeRedirect
	case refused:
		return ScrapeRefused
	case errors.Is(err, context.DeadlineExceeded):
		return ScrapeTimeout
	}
	return ScrapeUnreachable
}

func (s *Scraper) read(ctx context.Context, p *page) (reports map[uint32]Report, err error) {
	err = s.client.Get(ctx, engines.Question{URL: p.URL, Accept: "text/plain;version=0.0.4", Most: maxPage, Redirects: true}, func(body io.Reader) error {
		buffer := s.buffers.Get().(*bufio.Reader)
		buffer.Reset(body)
		defer func() {
			buffer.Reset(nil)
			s.buffers.Put(buffer)
		}()
		reports, err = readPage(buffer, &p.LoadPage, func(why Reason) { s.counters.drop(Scrape, why) })
		return err
	})
	return reports, err
}

// pageHeap has pages, the one that is due first at 0.
type pageHeap []*page

func (h pageHeap) Len() int           { return len(h) }
func (h pageHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h pageHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push and Pop implement heap.Interface.
func (h *pageHeap) Push(x any) {
	p := x.(*page)
	p.index = len(*h)
	*h = append(*h, p)
}

func (h *pageHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.index = -1
	return p
}
