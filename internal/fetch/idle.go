package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// watch ends a request when something takes longer than the idle time. It is
// stopped while the caller is busy with what came: only the other side is timed.
type watch struct {
	cancel context.CancelCauseFunc
	cause  func() error // why the request was cut off, nil if it was not
	idle   time.Duration
	timer  *time.Timer
}

// newWatch returns a stopped watch and the context of the request.
func newWatch(parent context.Context, idle time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(parent)
	w := &watch{cancel: cancel, cause: func() error { return context.Cause(ctx) }, idle: idle}
	w.timer = time.AfterFunc(idle, func() { cancel(ErrIdle) })
	w.timer.Stop()
	return ctx, w
}

func (w *watch) start() { w.timer.Reset(w.idle) }
func (w *watch) stop()  { w.timer.Stop() }

// end gives up the request.
func (w *watch) end() {
	w.stop()
	w.cancel(context.Canceled)
}

// explain returns why a request was cut off, if err says no more than that it was.
func (w *watch) explain(err error) error {
	cause := w.cause()
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// body is an answer whose reads are watched.
type body struct {
	io.ReadCloser
	watch *watch
}

func (b *body) Read(p []byte) (int, error) {
	b.watch.start()
	n, err := b.ReadCloser.Read(p)
	b.watch.stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("fetch: %w", b.watch.explain(err))
	}
	return n, err
}

func (b *body) Close() error {
	b.watch.end()
	return b.ReadCloser.Close()
}
