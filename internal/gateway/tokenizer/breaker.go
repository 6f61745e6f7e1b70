package tokenizer

import (
	"sync"
	"time"
)

const (
	// opensAfter is how many failures in a row open a server's breaker.
	opensAfter = 5
	// trialEvery is how often a server with an open breaker is asked all the same.
	trialEvery = time.Second
	// maxBreakers bounds the servers whose failures are remembered.
	maxBreakers = 1 << 14
)

// breakers remember by server which ones fail, so that they are not asked for each
// request. The zero value is ready. It is safe for concurrent use.
type breakers struct {
	mu sync.Mutex // guards failing
	// failing has the servers whose last answer was a failure.
	failing map[string]*breaker
}

type breaker struct {
	failures int       // in a row
	trial    time.Time // the last time that it was asked although it is open
}

// allow reports whether a server may be asked now. Who may asks, and says how it went. trial
// is the time of a trial, zero for other questions.
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

// cancelled says that nothing is known of a server that was asked: the last trial, if it ended
// so, leaves the next one to who comes next. Other questions say nothing of it.
func (b *breakers) cancelled(server string, trial time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.failing[server]; s != nil && !trial.IsZero() && s.trial.Equal(trial) {
		s.trial = time.Time{}
	}
}
