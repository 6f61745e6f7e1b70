package kubernetes

import (
	"maps"
	"sync"
	"time"
)

// Counters count what discovery does, by the labels of its metrics.
type Counters struct {
	mu sync.Mutex // guards the fields below
	Counts
}

// Counts are the values of Counters at one moment.
type Counts struct {
	Requests map[[3]string]uint64 // by resource, verb and outcome
	Events   map[[2]string]uint64 // by resource and type
	Lists    map[[2]string]uint64 // by resource and cause
	Unread   map[string]uint64    // objects that could not be read, by resource
	Unknown  uint64               // annotations without a meaning
}

func newCounters() *Counters {
	return &Counters{Counts: Counts{
		Requests: make(map[[3]string]uint64), Events: make(map[[2]string]uint64), Lists: make(map[[2]string]uint64),
		Unread: make(map[string]uint64),
	}}
}

// Read returns the values.
func (c *Counters) Read() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counts{
		Requests: maps.Clone(c.Requests), Events: maps.Clone(c.Events), Lists: maps.Clone(c.Lists),
		Unread: maps.Clone(c.Unread), Unknown: c.Unknown,
	}
}

func (c *Counters) request(resource, verb string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = failureOf(err).String()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Requests[[3]string{resource, verb, outcome}]++
}

func (c *Counters) event(resource, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Events[[2]string{resource, kind}]++
}

func (c *Counters) list(resource, cause string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Lists[[2]string{resource, cause}]++
}

func (c *Counters) unread(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Unread[resource]++
}

func (c *Counters) unknown(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Unknown += uint64(n)
}

// zero is an unset time.
var zero time.Time
