package tokenizer

import (
	"sync"
	"time"
)

const (
	// opensAfter is how many failures in a row open the breaker of a server.
	opensAfter = 5
	// trialEvery is how often a server is tried while its breaker is open.
	trialEvery = time.Second
	// maxBreakers bounds the remembered servers.
	maxBreakers = 1 << 14
)

// breakers has a circuit breaker for each server that fails, so that it is not asked for every
// request. The zero value is ready. It is safe for concurrent use.
type breakers struct {
	mu sync.Mutex // guards failing
	// failing has the servers whose last answer was a failure, by base URL.
	failing map[string]*breaker
}

type breaker struct {
	failures int       // in a row
	trial    time.Time // when it was last tried while open
}

// allow reports whether a server may be asked now. A caller that may must report the outcome
// with succeeded, failed or cancelled. trial is not zero if this call is the trial of an open
// breaker.
func (b *breakers) allow(server string, now time.Time) (trial time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.failing[server]
	if s == nil || s.failures < opensAfter {
		return time.Time{}, true
	}
	if now.Sub(s.trial) < trialEvery {
		return time.Time{}, false
	}
	s.trial = now
	return now, true
}

func (b *breakers) succeeded(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failing, server)
}

func (b *breakers) failed(server string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.failing[server]
	if s == nil {
		if b.failing == nil || len(b.failing) >= maxBreakers {
			b.failing = make(map[string]*breaker)
		}
		s = &breaker{}
		b.failing[server] = s
	}
	if s.failures++; s.failures == opensAfter {
		s.trial = now
	}
}

// cancelled reports that a call ended without an outcome. If the call was the latest trial of
// an open breaker, the next caller may try at once.
func (b *breakers) cancelled(server string, trial time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.failing[server]; s != nil && !trial.IsZero() && s.trial.Equal(trial) {
		s.trial = time.Time{}
	}
}
