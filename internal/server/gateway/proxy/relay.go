package proxy

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/transport/http1"
)

const (
	// eventBuffer and bodyBuffer are the memory for the pieces of a stream of events, which are short, and of
	// other answers, in bytes.
	eventBuffer = 4 << 10
	bodyBuffer  = 16 << 10
	// streamMemory is reserved for each request.
	streamMemory = bodyBuffer
)

var (
	eventBuffers = sync.Pool{New: func() any { return new(make([]byte, eventBuffer)) }}
	bodyBuffers  = sync.Pool{New: func() any { return new(make([]byte, bodyBuffer)) }}
)

// relay passes an answer on.
type relay struct {
	e      *exchange
	left   int64     // bytes of the body that are to come; -1: it is not known how many
	events bool      // server-sent events, and nothing else
	err    error     // why the client did not take a piece
	moved  time.Time // when the write deadline was last moved

	// The fields below belong to a stream of events with a keepalive. mu is held while something is written.
	mu     sync.Mutex
	tail   [3]byte   // the last bytes of the stream
	last   time.Time // when the last piece was written
	timer  *time.Timer
	closed bool
}

// workerHeader tells callers with the role operate which worker and rank answered.
const workerHeader = "X-Select-Worker"

// answer passes the engine's answer on, and closes it.
func (e *exchange) answer(place *gateway.Placement, resp *http1.Response) {
	defer resp.Close()
	e.sent(resp)
	e.line.status = resp.Status
	if resp.Status == http.StatusSwitchingProtocols {
		e.upgrade(resp)
		return
	}
	contentType, encoding := resp.Header.Get("Content-Type"), resp.Header.Get("Content-Encoding")
	e.Answered(resp.Status, contentType, encoding)
	h := e.w.Header()
	addTo(h, resp.Header)
	e.endConnection()
	if e.operates {
		h[workerHeader] = []string{place.Worker()}
	}
	if contentType == "" {
		h["Content-Type"] = nil // net/http would guess one
	}
	if resp.Length >= 0 && (resp.HasBody() || e.r.Method == http.MethodHead || resp.Status == http.StatusNotModified || resp.Length == 0) && resp.Status != http.StatusNoContent {
		h["Content-Length"] = []string{strconv.FormatInt(resp.Length, 10)}
	} else if resp.HasBody() {
		announce(h, resp.Header)
	}
	e.w.WriteHeader(resp.Status)
	if !resp.HasBody() {
		e.End()
		e.line.outcome = outcomeDone
		return
	}
	media, _, _ := mime.ParseMediaType(contentType)
	r := &relay{e: e, left: resp.Length, events: media == "text/event-stream" && (encoding == "" || encoding == "identity")}
	r.run(resp)
}

// sent frees the request's body once the engine has it.
func (e *exchange) sent(resp *http1.Response) {
	if !e.freed && !resp.Sending() {
		e.freed = true
		e.Release()
	}
}

// announce tells which trailers will follow, as the engine does, but for those that may not (RFC 9110, section 6.5.1).
func announce(to http.Header, from http1.Header) {
	for list := range from.Values("Trailer") {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.Trim(name, " \t"); httpguts.ValidHeaderFieldName(name) && httpguts.ValidTrailerHeader(name) {
				to.Add("Trailer", name)
			}
		}
	}
}

// run passes the body on.
func (r *relay) run(resp *http1.Response) {
	e := r.e
	if r.events && r.left < 0 { // no comment fits into a stream whose length has been announced
		r.startKeepalive()
		defer r.stopKeepalive()
	}
	if (r.events || r.left < 0) && !resp.Ready() {
		r.flush() // the head alone, so that the client knows at once that there is an answer
	}
	pass := r.pass
	for {
		ended, err := r.next(resp, pass)
		switch {
		case r.err != nil:
			e.gone()
			panic(http.ErrAbortHandler)
		case ended:
			r.addTrailers(resp.Trailer)
			e.line.outcome = outcomeDone
			return
		case err != nil && e.ctx.Err() != nil:
			e.gone()
			panic(http.ErrAbortHandler)
		case err != nil:
			r.breakOff(err)
			return
		}
	}
}

// next passes what has come of the body on, at least a byte or its end. The error is the engine's. A stream of
// events waits without a buffer: most of the streams of a busy proxy do, most of the time.
func (r *relay) next(resp *http1.Response, pass func(piece []byte, end bool) error) (ended bool, err error) {
	buffers := &bodyBuffers
	if r.events {
		resp.Wait()
		buffers = &eventBuffers
	}
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	e, buf := r.e, *p
	n, err := resp.Read(buf)
	e.sent(resp)
	if n > 0 && e.line.first.IsZero() {
		e.line.first = time.Now()
		e.server.config.Metrics.FirstByte(e.line.first.Sub(e.began))
	}
	e.line.bytes += int64(n)
	ended = errors.Is(err, io.EOF)
	if (n > 0 || ended) && r.err == nil {
		r.err = e.Relay(buf[:n], ended, pass)
	}
	return ended, err
}

// gone notes that the client has left.
func (e *exchange) gone() {
	e.line.gone()
	e.server.config.Metrics.Gone()
}

// addTrailers adds the fields behind the body.
func (r *relay) addTrailers(trailer http1.Header) {
	h := r.e.w.Header()
	for i := range trailer {
		if name := http.CanonicalHeaderKey(trailer[i].Name); !ofConnection[name] {
			h[http.TrailerPrefix+name] = append(h[http.TrailerPrefix+name], trailer[i].Value)
		}
	}
}

// pass writes a piece of the body. The last one is not flushed: what ends the answer goes with it.
func (r *relay) pass(piece []byte, end bool) error {
	if len(piece) == 0 {
		return nil
	}
	if r.events {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.noteLocked(piece)
	}
	r.moveDeadline()
	if _, err := r.e.w.Write(piece); err != nil {
		return err
	}
	if r.left -= int64(len(piece)); end || r.left == 0 {
		return nil
	}
	return r.flushNow()
}

func (r *relay) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveDeadline()
	r.err = r.flushNow()
}

// flushNow waits until the client, or the network, has what is written.
func (r *relay) flushNow() error {
	err := r.e.control.Flush()
	if r.e.r.ProtoMajor > 1 { // there a deadline ends the stream also while nothing is written
		r.moved = time.Time{}
		_ = r.e.control.SetWriteDeadline(time.Time{}) // fails only if the connection has ended
	}
	return err
}

// deadlineAge is how old a write deadline may be, as a part of the timeout, before it is moved: to do so for each
// piece would cost a timer each time.
const deadlineAge = 8

// moveDeadline gives the client the whole time again to take what is written, or nearly.
func (r *relay) moveDeadline() {
	timeout := r.e.server.config.WriteTimeout
	if now := time.Now(); now.Sub(r.moved) > timeout/deadlineAge {
		r.moved = now
		_ = r.e.control.SetWriteDeadline(now.Add(timeout)) // fails only if the connection has ended
	}
}

// noteLocked notes a piece of a stream of events.
func (r *relay) noteLocked(piece []byte) {
	r.last = time.Now()
	if n := len(piece); n >= len(r.tail) {
		copy(r.tail[:], piece[n-len(r.tail):])
	} else {
		copy(r.tail[:], r.tail[n:])
		copy(r.tail[len(r.tail)-n:], piece)
	}
}

// betweenEvents reports whether the stream is at its begin or behind the empty line that ends an event.
func (r *relay) betweenEvents() bool {
	t := r.tail[:]
	return r.tail == [3]byte{} || bytes.HasSuffix(t, []byte("\n\n")) || bytes.HasSuffix(t, []byte("\r\r")) || bytes.Equal(t, []byte("\n\r\n"))
}

// startKeepalive starts the timer that sends a comment whenever the engine has been silent for Config.Keepalive.
func (r *relay) startKeepalive() {
	if every := r.e.server.config.Keepalive; every > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last = time.Now()
		r.timer = time.AfterFunc(every, r.keepAlive)
	}
}

func (r *relay) stopKeepalive() {
	if r.timer != nil {
		r.timer.Stop()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.closed = true
	}
}

// The signs of life of a stream: a comment, and what Anthropic's API has for it.
const (
	comment = ": keepalive\n\n"
	ping    = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
)

func (r *relay) keepAlive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	every := r.e.server.config.Keepalive
	silent := time.Since(r.last)
	if silent >= every && r.betweenEvents() {
		text := comment
		if r.e.Kind() == openai.Messages {
			text = ping
		}
		r.moveDeadline()
		if _, err := io.WriteString(r.e.w, text); err == nil {
			_ = r.flushNow() // a client that has left is noticed by its request's context
		}
		r.last, silent = time.Now(), 0
	}
	r.timer.Reset(max(every-silent, every/deadlineAge))
}

// breakOff ends an answer that its engine has broken off: a stream of events with an error, anything else, and a
// stream within an event, with the connection. The client must not take it for a whole one.
func (r *relay) breakOff(err error) {
	e := r.e
	e.server.config.Metrics.Broken(uint8(e.Kind()))
	e.server.config.Log.Debug().Str("engine", e.line.engine).Err(err).Msg("an engine has broken off its answer")
	e.line.outcome = outcomeBroken
	if !r.events || r.left >= 0 {
		panic(http.ErrAbortHandler)
	}
	r.stopKeepalive()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.betweenEvents() {
		panic(http.ErrAbortHandler)
	}
	r.moveDeadline()
	if _, err := e.w.Write(openai.AppendErrorEvent(nil, e.Kind(), "The engine has broken off its answer.", openai.TypeServer, codeOf(err))); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func codeOf(err error) string {
	if errors.Is(err, http1.ErrProtocol) {
		return "engine_protocol"
	}
	return "engine_unreachable"
}
