package recovery

import (
	"context"
	"io"
	"strings"
)

// RecoveringHeader is "true" in the HTTP answer of a replica that is itself still
// recovering: its dump may not be all, so the next peer is asked, too.
const RecoveringHeader = "X-Select-Service-Recovering"

// Fetcher gets the dump of a peer.
type Fetcher interface {
	// GetDump gets the dump at a URL. recovering: the peer said that it is itself
	// recovering. Reading the body fails when it stalls; no time limits it as a
	// whole. ctx ends it.
	GetDump(ctx context.Context, url string) (body io.ReadCloser, recovering bool, err error)
}

// Observer is told how a recovery goes on.
type Observer interface {
	// Asking: the dump of a peer is asked for.
	Asking(peer string)
	// Read says how far a peer's dump has been read, now and then and at its end.
	Read(peer string, report *Report)
	// Answered says what a peer's dump came to; err is why it failed or broke off.
	Answered(peer string, answer Answer, err error)
}

// Answer is what one peer gave.
type Answer struct {
	Report
	// Started: the peer sent something that looks like a dump.
	Started    bool
	Recovering bool // the peer is recovering itself
}

// Sufficient tells whether nobody else needs to be asked.
func (a *Answer) Sufficient() bool { return a.Started && !a.Recovering && !a.Incomplete() }

// Summary is what a recovery brought.
type Summary struct {
	Report        // of all peers together
	Answered int  // peers that gave something
	Complete bool // the last one's dump was whole
}

// Recover reads the dumps of peers, given by their base URLs, in order, until one
// is whole: the next peer is asked if the one before failed, broke off, had
// anything to skip or is recovering itself. What each gave stays.
func Recover(ctx context.Context, peers []string, fetch Fetcher, target Target, opt Options, obs Observer) Summary {
	var sum Summary
	for _, peer := range peers {
		if ctx.Err() != nil {
			break
		}
		obs.Asking(peer)
		answer, err := ask(ctx, peer, fetch, target, opt, obs)
		obs.Answered(peer, answer, err)
		sum.Add(&answer.Report)
		if answer.Started {
			sum.Answered++
		}
		if sum.Complete = answer.Sufficient(); sum.Complete {
			break
		}
	}
	return sum
}

func ask(ctx context.Context, peer string, fetch Fetcher, target Target, opt Options, obs Observer) (Answer, error) {
	body, recovering, err := fetch.GetDump(ctx, strings.TrimRight(peer, "/")+"/dump")
	if err != nil {
		return Answer{}, err
	}
	defer body.Close() // it was only read: an error says nothing
	opt.Progress = func(r *Report) { obs.Read(peer, r) }
	report, err := Read(ctx, body, target, opt)
	obs.Read(peer, &report)
	return Answer{Report: report, Started: report.Events > 0 || err == nil, Recovering: recovering}, err
}
