package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Answer writes what another replica has asked for: a path with its query, as over HTTP.
type Answer func(ctx context.Context, w io.Writer, u *url.URL) error

const (
	// partSize is the size of a part of an answer, in bytes.
	partSize = 256 << 10
	// window is how many parts of an answer are on their way at a time: who asks has room for them, and
	// says after each half of them how many it has used.
	window = 4
	// headerSize bounds the headers of a part, in bytes, and maxFault the error in them.
	headerSize, maxFault = 512, 256
	// maxAnswers bounds the answers that are written at a time, maxOfOne those to one replica: one that leaves its
	// answers unread keeps nobody else waiting.
	maxAnswers, maxOfOne = 16, 2
	// answerIdle is how long the next part of an answer is awaited, and by who writes it that one is used.
	answerIdle = 3 * time.Second

	// headers of the parts: the number of a part from 0, and on the last one, which is empty,
	// the error or "ok".
	partHeader = "Part"
	endHeader  = "End"
	endOK      = "ok"
	// usedHeader is that of a message, to where the question went, that says how many parts of the
	// answer to the same inbox were used.
	usedHeader = "Used"
)

var (
	errNoMemory = errors.New("no memory for the answer (--max-memory)")
	errUnused   = errors.New("the answer was not read in time")
	errBusy     = errors.New("busy with other replicas")
	errTooMany  = fmt.Errorf("%d answers to this replica are not read yet", maxOfOne)
)

// answers are those that are being written.
type answers struct {
	writing sync.WaitGroup

	mu    sync.Mutex             // guards the fields below
	by    map[string]*partWriter // by the inbox of who has asked
	ended bool                   // no others begin
}

// begin adds an answer. The error says why there is no room, or the inbox gets one already.
func (a *answers) begin(w *partWriter) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	same := 0
	for _, o := range a.by {
		if o.asker == w.asker {
			same++
		}
	}
	switch {
	case same >= maxOfOne:
		return errTooMany
	case a.ended || len(a.by) == maxAnswers || a.by[w.reply] != nil:
		return errBusy
	}
	a.by[w.reply] = w
	a.writing.Add(1)
	return nil
}

func (a *answers) end(w *partWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.by, w.reply)
	a.writing.Done()
}

// wait waits for the answers under way. No others begin.
func (a *answers) wait() {
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.writing.Wait()
}

// use notes how many parts the asker has used.
func (a *answers) use(reply, parts string) {
	n, err := strconv.Atoi(parts)
	a.mu.Lock()
	w := a.by[reply]
	a.mu.Unlock()
	if err == nil && w != nil {
		w.use(n)
	}
}

// SetAnswer sets what answers the requests of other replicas.
func (c *Conn) SetAnswer(a Answer) { c.answer.Store(&a) }

// inboxes begins the subjects below which a replica gets answers.
func (c *Conn) inboxes(replica string) string { return "_INBOX." + c.config.Fleet + "." + replica }

// answersTo reports whether a subject is an inbox of a replica. No other one gets an answer: a server that
// allows responses lets this replica publish there although who asks may not.
func (c *Conn) answersTo(replica, subject string) bool {
	name, is := strings.CutPrefix(subject, c.inboxes(replica)+".")
	return is && name != "" && !strings.ContainsAny(name, "*>")
}

// asked returns what takes the requests of other replicas.
func (c *Conn) asked(ctx context.Context) nats.MsgHandler {
	return func(m *nats.Msg) {
		asker := c.sender(m.Subject)
		if c.answer.Load() == nil || !c.answersTo(asker, m.Reply) {
			return
		}
		if used := m.Header.Get(usedHeader); used != "" {
			c.answers.use(m.Reply, used)
			return
		}
		w := newPartWriter(ctx, c.nc.Load().PublishMsg, asker, m.Reply, partSize)
		if most := int(c.maxPayload.Load()) - headerSize; most > 0 {
			w.size = min(w.size, most)
		}
		if err := c.answers.begin(w); err != nil {
			w.end(err)
			return
		}
		go c.write(w, string(m.Data))
	}
}

// write writes the answer to a question that has begun.
func (c *Conn) write(w *partWriter, question string) {
	defer c.answers.end(w)
	if !c.config.Snapshots.Reserve(partSize) {
		w.end(errNoMemory)
		return
	}
	defer c.config.Snapshots.Release(partSize)
	u, err := url.Parse(question)
	if err == nil {
		err = (*c.answer.Load())(w.ctx, w, u)
	}
	w.end(err)
}

// partWriter sends an answer in parts, of which no more than window are on their way.
type partWriter struct {
	ctx     context.Context //nolint:containedctx // of the answer, which the writer is a part of
	publish func(*nats.Msg) error
	asker   string // the replica that has asked
	reply   string
	size    int // of a part, in bytes
	buffer  []byte
	parts   int
	used    atomic.Int64  // parts that the asker has used
	more    chan struct{} // used has risen; capacity 1
}

func newPartWriter(ctx context.Context, publish func(*nats.Msg) error, asker, reply string, size int) *partWriter {
	return &partWriter{ctx: ctx, publish: publish, asker: asker, reply: reply, size: size, more: make(chan struct{}, 1)}
}

// use notes how many parts the asker has used.
func (w *partWriter) use(parts int) {
	w.used.Store(int64(parts))
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *partWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		k := min(len(p), w.size-len(w.buffer))
		w.buffer = append(w.buffer, p[:k]...)
		n, p = n+k, p[k:]
		if len(w.buffer) == w.size {
			if err := w.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// flush sends what was written, once the asker has room for it.
func (w *partWriter) flush() error {
	idle := time.NewTimer(answerIdle)
	defer idle.Stop()
	for int64(w.parts)-w.used.Load() >= window {
		select {
		case <-w.more:
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-idle.C:
			return errUnused
		}
	}
	err := w.send(w.buffer, "")
	w.buffer = w.buffer[:0]
	return err
}

func (w *partWriter) send(data []byte, end string) error {
	m := &nats.Msg{Subject: w.reply, Data: data, Header: nats.Header{partHeader: {strconv.Itoa(w.parts)}}}
	if end != "" {
		m.Header.Set(endHeader, end)
	}
	w.parts++
	return w.publish(m)
}

// end sends the rest and how it went. An answer that cannot be sent ends by the other side's
// timeout.
func (w *partWriter) end(err error) {
	if err == nil && len(w.buffer) > 0 {
		err = w.flush()
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
	if c.Phase() == Lost {
		return nil, errAway
	}
	if !c.config.Snapshots.Reserve(windowBytes) {
		return nil, fmt.Errorf("replica %s: %w", u.Host, errNoMemory)
	}
	r := &partReader{ctx: ctx, conn: c, from: u.Host}
	if err := r.ask(u.RequestURI()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// windowBytes is what may have come of an answer and is not used yet.
const windowBytes = window * partSize

// partReader reads an answer. windowBytes of the account are its own until Close.
type partReader struct {
	ctx    context.Context //nolint:containedctx // of the request, which the reader is a part of
	conn   *Conn
	nc     *nats.Conn
	sub    *nats.Subscription
	inbox  string
	from   string
	rest   []byte
	parts  int
	end    error // io.EOF after the last part
	closed bool
}

// ask sends the question. More than a window, which only a replica that breaks the rules sends, is not
// taken.
func (r *partReader) ask(path string) (err error) {
	r.nc = r.conn.nc.Load()
	r.inbox = r.nc.NewInbox() // not one of NewRespInbox: the library takes all those itself, too
	if r.sub, err = r.nc.SubscribeSync(r.inbox); err != nil {
		return err
	}
	if err := r.sub.SetPendingLimits(window+1, windowBytes+(window+1)*headerSize); err != nil {
		return err
	}
	return r.publish(&nats.Msg{Data: []byte(path)})
}

// publish sends a message about the answer to who writes it.
func (r *partReader) publish(m *nats.Msg) error {
	m.Subject, m.Reply = r.conn.subject("ask."+r.from), r.inbox
	return r.nc.PublishMsg(m)
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

// next takes the next part. All before it were used.
func (r *partReader) next() {
	if r.parts > 0 && r.parts%(window/2) == 0 {
		used := nats.Header{usedHeader: {strconv.Itoa(r.parts)}}
		if r.end = r.publish(&nats.Msg{Header: used}); r.end != nil {
			return
		}
	}
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

// Close gives up what has not been read.
func (r *partReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed, r.rest = true, nil
	r.conn.config.Snapshots.Release(windowBytes)
	if r.sub == nil {
		return nil
	}
	return r.sub.Unsubscribe()
}
