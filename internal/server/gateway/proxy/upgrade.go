package proxy

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/transport/http1"
)

// upgrade makes the client's connection one with the engine, in the protocol to which both have changed.
func (e *exchange) upgrade(resp *http1.Response) {
	engine := resp.Upgraded()
	client, buffered, err := e.control.Hijack()
	if engine == nil || err != nil {
		panic(http.ErrAbortHandler)
	}
	e.server.clients.remove(e) // from now on it is read
	defer client.Close()
	_ = client.SetDeadline(time.Time{})
	h := make(http.Header)
	addTo(h, resp.Header)
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{resp.Header.Get("Upgrade")}
	text := buffered.Writer
	_, _ = text.WriteString("HTTP/1.1 101 Switching Protocols\r\n") // what fails shows in Flush
	_ = h.Write(text)
	_, _ = text.WriteString("\r\n")
	if text.Flush() != nil {
		return
	}
	e.Answered(resp.Status, "", "")
	defer context.AfterFunc(e.ctx, func() { _ = client.Close() })() // that of the engine ends by itself
	var sending sync.WaitGroup
	defer sending.Wait()
	defer engine.Close() // ends what the goroutine writes
	defer client.Close() // and what it reads
	sending.Go(func() {
		// First what the client has sent behind its request.
		early, _ := buffered.Peek(buffered.Reader.Buffered())
		if _, err := engine.Write(early); err == nil && copyAll(engine, client) == nil {
			_ = engine.CloseWrite() // the engine may still have something to say
			return
		}
		_ = engine.Close()
	})
	_ = copyAll(client, engine)
	e.line.outcome = outcomeDone
}

// copyAll passes the bytes of one direction on until it ends; nil: with the sender's end.
func copyAll(to io.Writer, from io.Reader) error {
	p := bodyBuffers.Get().(*[]byte)
	defer bodyBuffers.Put(p)
	for {
		n, err := from.Read(*p)
		if n > 0 {
			if _, err := to.Write((*p)[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
