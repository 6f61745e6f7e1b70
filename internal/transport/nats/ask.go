package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Answer writes what another replica has asked for: a path with its query, as over HTTP.
type Answer func(ctx context.Context, w io.Writer, u *url.URL) error

const (
	// partSize is the size of a part of an answer, in bytes.
	partSize = 256 << 10
	// headerSize bounds the headers of a part, in bytes, and maxFault the error in them.
	headerSize, maxFault = 512, 256
	// maxParts bounds the parts of an answer that have come and are not read yet.
	maxParts = 1 << 10
	// maxAnswers bounds the answers that are written at a time.
	maxAnswers = 4
	// answerIdle is how long the next part of an answer is awaited.
	answerIdle = 3 * time.Second

	// headers of the parts: the number of a part from 0, and on the last one, which is empty,
	// the error or "ok".
	partHeader = "Part"
	endHeader  = "End"
	endOK      = "ok"
)

// SetAnswer sets what answers the requests of other replicas.
func (c *Conn) SetAnswer(a Answer) { c.answer.Store(&a) }

// asked returns what takes the requests of other replicas.
func (c *Conn) asked(ctx context.Context) nats.MsgHandler {
	return func(m *nats.Msg) {
		a := c.answer.Load()
		if a == nil || m.Reply == "" {
			return
		}
		w := &partWriter{nc: c.nc.Load(), reply: m.Reply, size: partSize}
		if most := int(c.maxPayload.Load()) - headerSize; most > 0 {
			w.size = min(w.size, most)
		}
		select {
		case c.answering <- struct{}{}:
		default:
			w.end(errors.New("busy with other replicas"))
			return
		}
		go func() {
			defer func() { <-c.answering }()
			u, err := url.Parse(string(m.Data))
			if err == nil {
				err = (*a)(ctx, w, u)
			}
			w.end(err)
		}()
	}
}

// partWriter sends an answer in parts.
type partWriter struct {
	nc     *nats.Conn
	reply  string
	size   int // of a part, in bytes
	buffer []byte
	parts  int
}

func (w *partWriter) Write(p []byte) (int, error) {
	w.buffer = append(w.buffer, p...)
	for len(w.buffer) >= w.size {
		if err := w.send(w.buffer[:w.size], ""); err != nil {
			return 0, err
		}
		w.buffer = append(w.buffer[:0], w.buffer[w.size:]...)
	}
	return len(p), nil
}

func (w *partWriter) send(data []byte, end string) error {
	m := &nats.Msg{Subject: w.reply, Data: data, Header: nats.Header{partHeader: {strconv.Itoa(w.parts)}}}
	if end != "" {
		m.Header.Set(endHeader, end)
	}
	w.parts++
	return w.nc.PublishMsg(m)
}

// end sends the rest and how it went. An answer that cannot be sent ends by the other side's
// timeout.
func (w *partWriter) end(err error) {
	if err == nil && len(w.buffer) > 0 {
		err = w.send(w.buffer, "")
	}
	end := endOK
	if err != nil {
		text := err.Error()
		end = strings.Map(func(r rune) rune {
			if r < ' ' {
				return ' '
			}
			return r
		}, text[:min(len(text), maxFault)])
	}
	_ = w.send(nil, end)
}

// Get asks a replica for a path with its query, at nats://REPLICA/path.
func (c *Conn) Get(ctx context.Context, address string) (io.ReadCloser, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if u.Scheme+"://" != Scheme || CheckName(u.Host) != nil {
		return nil, fmt.Errorf("%s: %w", address, errNoPeer)
	}
	if !c.Up() {
		return nil, errAway
	}
	nc := c.nc.Load()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(maxParts, pendingBytes); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	if err := nc.PublishRequest(c.subject("ask."+u.Host), inbox, []byte(u.RequestURI())); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	return &partReader{ctx: ctx, sub: sub, from: u.Host}, nil
}

// partReader reads an answer.
type partReader struct {
	ctx   context.Context //nolint:containedctx // of the request, which the reader is a part of
	sub   *nats.Subscription
	from  string
	rest  []byte
	parts int
	end   error // io.EOF after the last part
}

func (r *partReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.end != nil {
			return 0, r.end
		}
		r.next()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// next takes the next part.
func (r *partReader) next() {
	ctx, cancel := context.WithTimeout(r.ctx, answerIdle)
	defer cancel()
	m, err := r.sub.NextMsgWithContext(ctx)
	switch {
	case err != nil:
		r.end = fmt.Errorf("replica %s: %w", r.from, err)
	case m.Header.Get("Status") == "503":
		r.end = fmt.Errorf("replica %s: %w", r.from, nats.ErrNoResponders)
	case m.Header.Get(partHeader) != strconv.Itoa(r.parts):
		r.end = fmt.Errorf("replica %s: part %d of its answer was lost", r.from, r.parts)
	case m.Header.Get(endHeader) == endOK:
		r.end = io.EOF
	case m.Header.Get(endHeader) != "":
		r.end = fmt.Errorf("replica %s: %s", r.from, m.Header.Get(endHeader))
	}
	if r.end == nil {
		r.rest = m.Data
		r.parts++
	}
}

func (r *partReader) Close() error { return r.sub.Unsubscribe() }
