package waitqueue

import (
	"math"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
)

// busy has the requests that wait because all ranks that they could use are busy. Package
// admission decides their order.
type busy struct {
	config        Config
	queue         *admission.Queue
	alarm         *time.Timer // calls dispatchQueue when queue.NextAlarm comes
	alarmAt       float64     // when that is, if there is one
	dispatchQueue func()
}

func (b *busy) enter(r Request, since *time.Time) (*Queued, error) {
	b.dispatch() // requests that can run by now go first
	if since.IsZero() {
		*since = time.Now()
	}
	w := &Queued{request: r, waiter: r.Waiter()}
	w.waiter.Arrived = since.Sub(b.config.Started).Seconds()
	w.waiter.Value = w
	class := b.queue.Classify(&w.waiter)
	if r.CanRun(class) {
		return nil, r.Run(b.queue.Payer(&w.waiter, b.now()))
	}
	if err := r.BeforeWait(class); err != nil {
		return nil, err
	}
	if err := b.queue.Add(&w.waiter, r.Workers()); err != nil {
		return nil, err
	}
	w.done = make(chan struct{})
	b.expire()
	if w.err != nil { // it is too late from the beginning
		return nil, w.err
	}
	return w, nil
}

func (b *busy) remove(w *Queued) bool { return b.queue.Remove(&w.waiter) }

func (b *busy) dispatch() {
	b.expire()
	defer b.schedule()
	for {
		w := b.queue.Next(b.now(), func(w *admission.Waiter) bool {
			return w.Value.(*Queued).request.CanRunNow(w.Class())
		})
		if w == nil {
			return
		}
		b.run(w.Value.(*Queued))
		b.queue.Served(w, b.now())
	}
}

// expire ends the requests that refuse to wait for a turn that would come too late.
func (b *busy) expire() {
	b.queue.Expire(b.now(), func(w *admission.Waiter) bool {
		late := w.Value.(*Queued)
		late.err = errPanicked // stays if TooLate panics
		defer func() {
			if late.err != nil {
				close(late.done)
			}
		}()
		late.err = late.request.TooLate(b.queue.Payer(w, b.now()))
		return late.err != nil
	})
	b.schedule()
}

// schedule has dispatchQueue called when expire has something to do.
func (b *busy) schedule() {
	next := b.queue.NextAlarm()
	if math.IsInf(next, 1) {
		b.stop()
		return
	}
	if b.alarm != nil && next == b.alarmAt {
		return
	}
	after := max(0, time.Duration((next-b.now())*float64(time.Second))) + time.Millisecond // not a moment too early
	if b.alarmAt = next; b.alarm == nil {
		b.alarm = time.AfterFunc(after, b.dispatchQueue)
	} else {
		b.alarm.Reset(after)
	}
}

func (b *busy) stop() {
	if b.alarm != nil {
		b.alarm.Stop()
		b.alarm = nil
	}
}

// now returns the time since the service started, in seconds.
func (b *busy) now() float64 { return time.Since(b.config.Started).Seconds() }

// run runs a request whose turn has come. If it panics, its own caller gets errPanicked: the
// panic is in another caller's goroutine.
func (b *busy) run(w *Queued) {
	w.err = errPanicked // stays if Refresh or Run panics
	defer close(w.done)
	err := w.request.Refresh(b.config.OverlapRefresh)
	if err == nil {
		err = w.request.Run(b.queue.Payer(&w.waiter, b.now()))
	}
	w.err = err
}

func (b *busy) end(reason error) {
	b.stop()
	var all []*admission.Waiter
	for w := range b.queue.All() {
		all = append(all, w)
	}
	for _, w := range all {
		b.queue.Remove(w)
		queued := w.Value.(*Queued)
		queued.err = reason
		close(queued.done)
	}
}

func (b *busy) pending() (requests int, tokens uint64) { return b.queue.Len(), b.queue.Tokens() }
