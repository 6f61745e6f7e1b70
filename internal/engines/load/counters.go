package load

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Reason says why something that an engine has sent is not a report.
type Reason uint8

// The reasons.
const (
	Good        Reason = iota // it is a report
	Malformed                 // it is not in the format, or says nothing of load
	BadNumber                 // a number is negative, NaN, or above MaxAmount
	ForeignRank               // of a rank that the worker does not have
	Restarted                 // the first of an engine that has started anew
	TooOften                  // beyond what a stream may send
	numReasons
)

// String returns the label of the reason.
func (r Reason) String() string {
	return [...]string{"", "malformed", "bad_number", "foreign_rank", "restarted", "too_often"}[r]
}

// ScrapeResult is the end of an attempt to read a page.
type ScrapeResult uint8

// The ends. After every other end than ScrapeOK the page is read less often for a while.
const (
	ScrapeOK          ScrapeResult = iota
	ScrapeUnreachable              // no connection, or no answer
	ScrapeTimeout                  // not complete within a second
	ScrapeStatus                   // an answer that is not 200
	ScrapeTooLarge                 // more than 4 MiB, or far more series than ranks
	ScrapeUseless                  // no text in the format with the load of a rank
	ScrapeRedirect                 // to another host
	ScrapeRefused                  // an address that is not allowed
	numScrapeResults
)

// String returns the label of the result.
func (r ScrapeResult) String() string {
	return [...]string{"ok", "unreachable", "timeout", "status", "too_large", "useless", "redirect", "refused"}[r]
}

// Counters count over all ranks, workers that have gone included.
type Counters struct {
	reports   [Sources]atomic.Uint64
	dropped   [Sources][numReasons]atomic.Uint64
	lost      atomic.Uint64 // pushed, by their numbers, and never received
	connected [2]atomic.Uint64
	scrapes   [numScrapeResults]atomic.Uint64
	seconds   *metrics.Histogram // of scrapes
}

// NewCounters returns Counters at 0.
func NewCounters() *Counters { return &Counters{seconds: metrics.NewHistogram(scrapeBounds)} }

// scrapeBounds are in seconds, up to the time after which a scrape is given up.
var scrapeBounds = metrics.Doubling(.001, 11)

// CountTold counts a report that has come over HTTP.
func (c *Counters) CountTold() { c.reports[Told].Add(1) }

func (c *Counters) drop(s Source, r Reason) { c.dropped[s][r].Add(1) }

// Families are the metrics of Collector.
var Families metrics.Families

var (
	loadReports       = Families.Counter("load_reports_total", "Reports that engines gave of a rank's load, by source.", "source")
	loadDropped       = Families.Counter("load_reports_dropped_total", "What engines said of their load and was not used, by source and reason.", "source", "reason")
	loadLost          = Families.Counter("load_messages_lost_total", "Messages of load streams that never arrived, by their numbers.")
	loadStreams       = Families.Gauge("load_streams", "Load streams of ranks by state.", "state")
	loadStreamChanges = Families.Counter("load_stream_changes_total", "Changes in the connections of load streams.", "change")
	loadScrapes       = Families.Counter("load_scrapes_total", "Readings of engines' metrics by result.", "result")
	loadScrapeSeconds = Families.Histogram("load_scrape_seconds", "Time of readings of engines' metrics.")
	loadPages         = Families.Gauge("load_pages", "Pages with engines' metrics by state: failing ones are read less often.", "state")
)

// Collector collects the metrics of the sources of reports.
type Collector struct {
	Streams *Streams
	Scraper *Scraper
}

// Describe implements prometheus.Collector.
func (Collector) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	n := c.Streams.counters
	for s := range Sources {
		metrics.Send(ch, loadReports, n.reports[s].Load(), s.String())
	}
	for r := Good + 1; r < numReasons; r++ {
		for s := range Told {
			if r.possible(s) {
				metrics.Send(ch, loadDropped, n.dropped[s][r].Load(), s.String(), r.String())
			}
		}
	}
	metrics.Send(ch, loadLost, n.lost.Load())
	states := c.Streams.States(time.Now())
	for _, s := range []kvevents.StreamState{kvevents.Connecting, kvevents.Live, kvevents.Stale} {
		metrics.Send(ch, loadStreams, states[s], s.String())
	}
	metrics.Send(ch, loadStreamChanges, n.connected[1].Load(), "connected")
	metrics.Send(ch, loadStreamChanges, n.connected[0].Load(), "disconnected")
	for r := range numScrapeResults {
		metrics.Send(ch, loadScrapes, n.scrapes[r].Load(), r.String())
	}
	metrics.SendHistogram(ch, loadScrapeSeconds, n.seconds)
	good, failing := c.Scraper.Pages()
	metrics.Send(ch, loadPages, good, "ok")
	metrics.Send(ch, loadPages, failing, "failing")
}

// possible reports whether a source can give the reason.
func (r Reason) possible(s Source) bool {
	switch r {
	case ForeignRank:
		return s == Scrape
	case Restarted, TooOften:
		return s == Push
	}
	return true
}
