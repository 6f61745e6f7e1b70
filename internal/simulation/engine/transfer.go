package engine

import (
	"slices"
	"time"
)

// Link is the way from one engine to another. Transfers of several requests do not slow each other down, unless they come by Send.
type Link struct {
	Setup    time.Duration // of each transfer
	PerToken time.Duration // of the prompt
}

// Time returns how long the KV cache of some tokens takes over the link.
func (l Link) Time(tokens int) time.Duration { return l.Setup + time.Duration(tokens)*l.PerToken }

// Transfer is the KV cache of a prompt's first tokens that another engine has computed. The zero value is none.
//
// Tokens that the engine has in its own cache are not transferred. The transfer begins when the request leaves the queue and has
// its blocks, and takes no time of the engine. Meanwhile requests behind it begin. After it the request is the next one to compute
// what is left of its prompt, which is the last token at least.
type Transfer struct {
	Tokens int // first tokens of the prompt
	Link   Link
}

// Send begins to send another engine the KV cache of a prompt's first tokens at model time now, of which that one has some. An
// engine sends one cache at a time, as fast as the link to the other one is: the setup has the wait for those before.
func (e *Engine) Send(now time.Duration, tokens, has int, l Link) Transfer {
	if tokens <= has {
		return Transfer{}
	}
	begins := max(now, e.sends)
	e.sends = begins + l.Time(tokens-has)
	l.Setup += begins - now
	return Transfer{Tokens: tokens, Link: l}
}

// pull begins the transfer of a request that has its blocks. It returns false if nothing is to be transferred.
func (e *Engine) pull(j *job, at time.Duration) bool {
	j.received = max(0, min(j.Transfer.Tokens, len(j.Prompt)-1)-j.cached)
	if j.received == 0 {
		return false
	}
	j.arrives = at + j.Transfer.Link.Time(j.received)
	i := slices.IndexFunc(e.transfers, func(o *job) bool { return o.arrives > j.arrives })
	if i < 0 {
		i = len(e.transfers)
	}
	e.transfers = slices.Insert(e.transfers, i, j)
	return true
}

// arriving returns when the next transfer ends, and false if there is none.
func (e *Engine) arriving() (time.Duration, bool) {
	if len(e.transfers) == 0 {
		return 0, false
	}
	return e.transfers[0].arrives, true
}

// receive ends the first transfer.
func (e *Engine) receive() {
	e.received = append(e.received, e.transfers[0])
	e.transfers = slices.Delete(e.transfers, 0, 1)
}
