package httpapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/pkg/memory"
)

const (
	// untracked is how many bytes of a body are counted in no account, but to its connection:
	// as much as net/http's buffers for it.
	untracked = 4 << 10
	// progressBytes is the progress, in bytes, for which a client counts as not stalled.
	progressBytes = 16 << 10
	// discardedWait is how long a client waits for the refusal of its body if the rest of it
	// cannot be read; less if the service stops.
	discardedWait = 5 * time.Second
)

// incoming is the body of a request while it arrives and until it has been parsed, with the
// request's part of the memory.
type incoming struct {
	allowance
	text   []byte
	buffer *memory.Buffer // memory of text; nil: text is in first
	first  [untracked]byte
}

var incomings = sync.Pool{New: func() any { return new(incoming) }}

// drop gives up the text without pooling its memory, which may still be in use.
func (in *incoming) drop() { in.text, in.buffer = nil, nil }

// keepEnd keeps only the end of the text while the request waits in a queue. Its memory is moved
// from the account of bodies, which others need, to the account of waiting requests. It reports
// whether that fits; if not, nothing is kept.
func (in *incoming) keepEnd(end []byte) bool {
	n, account := int64(len(end)), in.memory.waiting
	fits := true
	if in.waiting > 0 {
		account.Release(in.waiting - n)
	} else {
		fits = account.Reserve(n)
	}
	if !fits {
		n, end = 0, nil
	}
	in.drop()
	in.body.Release()
	in.text, in.waiting = bytes.Clone(end), n
	return fits
}

// release returns in and its memory to their pools. Nothing may refer to the text any
// more, and in must be closed.
func (in *incoming) release() {
	in.buffer.Release(nil)
	in.drop()
	incomings.Put(in)
}

// read reads the whole body, at most limit bytes.
func (in *incoming) read(c *gin.Context, limit int) error {
	r := c.Request
	if r.ContentLength > int64(limit) {
		return errBodyTooLarge
	}
	if err := in.fits(r.ContentLength); err != nil {
		return err
	}
	until := time.Now().Add(bodyTimeout)
	if in.text = in.first[:0]; r.ContentLength > untracked {
		if err := in.grow(c, limit); err != nil {
			return in.discardBody(c, until, err, false)
		}
	}
	progress := 0 // bytes since the client last counted as making progress
	for {
		n, err := r.Body.Read(in.text[len(in.text):cap(in.text)])
		in.text = in.text[:len(in.text)+n]
		switch {
		case len(in.text) > limit:
			return errBodyTooLarge
		case errors.Is(err, io.EOF), err == nil && int64(len(in.text)) == r.ContentLength:
			in.body.Reclaim()
			setReadDeadline(c, time.Time{}) // no deadline while the request is served
			return nil
		case err != nil && in.body.Reclaim():
			return in.discardBody(c, until, errNoMemory(in.body.Of().Account()), true)
		case isDisconnect(err) || c.Request.ProtoMajor >= 2 && c.Request.Context().Err() != nil:
			return errClientGone
		case err != nil:
			return &requestError{status: http.StatusBadRequest, text: "Failed to buffer the request body: " + err.Error(), reason: reasonInvalidJSON}
		}
		if progress += n; progress >= progressBytes {
			in.body.Progressed()
			progress = 0
		}
		if len(in.text) == cap(in.text) {
			if err := in.grow(c, limit); err != nil {
				return in.discardBody(c, until, err, false)
			}
		}
	}
}

// grow gets memory for more of a body: as much as small bodies may have or twice what has come, and no more than is
// announced; all that is announced once a quarter of it has come. A length beyond small bodies that is only announced
// reserves nothing.
func (in *incoming) grow(c *gin.Context, limit int) error {
	most := limit + 1 // one byte more, to notice a longer body
	if n := c.Request.ContentLength; n >= 0 {
		most = int(n)
	}
	want := max(memory.SmallBody, 2*len(in.text))
	if 4*len(in.text) >= most {
		want = max(want, most)
	}
	n, err := in.reserveBody(c, int64(memory.BufferSize(max(min(want, most), len(in.text)+1))))
	if err != nil {
		return err
	}
	b := memory.NewBuffer(int(n))
	in.text = append(b.Bytes, in.text...)
	in.buffer.Release(nil)
	in.buffer = b
	return nil
}

// reserveBody reserves n bytes in all for the body, or fewer if the account can never hold
// more, and lets the client be cut off. It returns how many.
func (in *incoming) reserveBody(c *gin.Context, n int64) (int64, error) {
	m := in.memory
	if m == nil {
		return n, nil
	}
	pool, patience := m.requests, sendPatience
	if n > memory.SmallBody || c.Request.ContentLength > memory.SmallBody {
		pool, patience = m.bodies, largePatience
		if n = min(n, pool.Account().Limit()); n <= in.body.Bytes() {
			return 0, errNeverFits(pool.Account())
		}
	}
	if err := resize(c.Request.Context(), pool, &in.body, n); err != nil {
		return 0, err
	}
	if in.client == nil {
		in.client = c.Writer
	}
	in.body.Lend(&in.allowance, patience)
	return n, nil
}

// discardBody drops a body for which there is no memory, reads and discards the rest of it
// until the given time, and returns err, the answer. A client that got the answer at once would
// come back before others have been served. After an interrupted read a chunked body cannot be
// read on, and the connection's context is done.
func (in *incoming) discardBody(c *gin.Context, until time.Time, err error, interrupted bool) error {
	if errors.Is(err, errClientGone) {
		return err
	}
	in.body.Release()
	in.buffer.Release(nil)
	in.drop()
	if interrupted && c.Request.ProtoMajor < 2 {
		c.Header("Connection", "close")
		if c.Request.ContentLength < 0 {
			select {
			case <-time.After(discardedWait):
			case <-in.memory.stopping:
			}
			return err
		}
	}
	setReadDeadline(c, until)
	for {
		switch _, end := c.Request.Body.Read(in.first[:]); {
		case end == nil:
		case isDisconnect(end):
			return errClientGone
		default:
			return err
		}
	}
}
