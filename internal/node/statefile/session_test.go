package statefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/replicasync"
)

// manySessions is a table of sessions without an end.
type manySessions struct {
	Sessions
	pages int
	read  func(pages int) // after each page
}

func (m *manySessions) SessionsAfter(cursor uint64, limit int) (page []replicasync.Session, next uint64, more bool) {
	for i := range limit {
		page = append(page, replicasync.Session{Scope: sc, ID: fmt.Sprint(cursor + uint64(i))})
	}
	m.pages++
	m.read(m.pages)
	return page, cursor + uint64(limit), true
}

// TestSessionsEnd: the time of a snapshot is that of its sessions too, of which a table may have very many.
func TestSessionsEnd(t *testing.T) {
	w, err := newWriter(new(bytes.Buffer), newHeader(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	table := &manySessions{read: func(pages int) {
		switch pages {
		case 3:
			cancel()
		case 5:
			panic("the time is over, and sessions are still written")
		}
	}}
	s := &State{parts: Parts{Sessions: table}}
	if err := s.writeSessions(ctx, w, &pacer{}); !errors.Is(err, context.Canceled) || table.pages != 3 {
		t.Errorf("%v after %d pages", err, table.pages)
	}
}
