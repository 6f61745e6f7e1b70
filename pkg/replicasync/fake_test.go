package replicasync

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// fixedScopes are block sizes that never change.
type fixedScopes map[catalog.Scope]uint32

func (f fixedScopes) BlockSize(sc catalog.Scope) (uint32, bool) {
	size, ok := f[sc]
	return size, ok
}

// nowhere is a network without anybody.
type nowhere struct{}

func (nowhere) Publish(string, []byte) error                              { return nil }
func (nowhere) PublishEither(string, []byte, string, func() []byte) error { return nil }
func (nowhere) Follow(string, func(string, []byte), func(bool)) (func(), error) {
	return func() {}, nil
}

func (nowhere) GetAnnounced(context.Context, string, string) (io.ReadCloser, error) {
	return nil, errors.New("no such peer")
}

// epoch is when the tests' clocks begin.
var epoch = time.Unix(1_700_000_000, 0)

// newTestReplica returns a replica and its ledger, which stand still at epoch.
func newTestReplica(scopes Scopes) (*Replica, *reservations.Ledger) {
	now := func() time.Time { return epoch }
	r := New(Options{Process: 1, URL: "http://self:1"}, scopes, nowhere{}, nowhere{}, now)
	l := reservations.New(1, now, r)
	r.Attach(l)
	return r, l
}

// pagesOf is a Fetcher that gives one page after the other.
type pagesOf struct {
	pages []string
	asked []string
	open  int
}

func (p *pagesOf) GetAnnounced(_ context.Context, url, _ string) (io.ReadCloser, error) {
	if len(p.asked) == len(p.pages) {
		return nil, errors.New("no more pages")
	}
	p.asked = append(p.asked, url)
	p.open++
	return &body{strings.NewReader(p.pages[len(p.asked)-1]), func() { p.open-- }}, nil
}

type body struct {
	io.Reader
	closed func()
}

func (b *body) Close() error {
	b.closed()
	return nil
}
