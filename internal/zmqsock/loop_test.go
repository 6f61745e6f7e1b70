package zmqsock

import (
	"fmt"
	"testing"

	"github.com/pebbe/zmq4"
)

// pipe returns a socket of the loop and one that sends to it.
func pipe(t *testing.T, l *loop, name string, message Message) (*socket, *zmq4.Socket) {
	t.Helper()
	var ends [2]*zmq4.Socket
	for i := range ends {
		var err error
		if ends[i], err = l.ctx.NewSocket(zmq4.PAIR); err != nil {
			t.Fatal(err)
		}
	}
	if err := ends[0].Bind("inproc://" + name); err != nil {
		t.Fatal(err)
	}
	if err := ends[1].Connect("inproc://" + name); err != nil {
		t.Fatal(err)
	}
	s, err := l.add(ends[0], message)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.remove(s)
		_ = ends[1].Close()
	})
	return s, ends[1]
}

// However many events wait in a monitor, all come before the first message.
func TestMonitorIsReadToItsEnd(t *testing.T) {
	ctx, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ctx.Term() })
	l, err := newLoop(ctx, DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.closeDescriptors)
	const events = 3*fairness + 5
	heard, at := 0, -1
	monitor, toMonitor := pipe(t, l, "monitor", func([][]byte) bool { heard++; return true })
	main, toMain := pipe(t, l, "main", func([][]byte) bool { at = heard; return true })
	main.readFirst, main.mustReadFirst = monitor, func() bool { return true }
	for i := range events {
		if _, err := toMonitor.Send(fmt.Sprint(i), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := toMain.Send("message", 0); err != nil {
		t.Fatal(err)
	}
	l.drain(main)
	if at != events {
		t.Errorf("%d of %d events came before the message", at, events)
	}
}

// Memory is given back soon after a burst, whatever timer is far off.
func TestTrimDoesNotWaitForTimers(t *testing.T) {
	l := &loop{}
	l.trim.received = trimAfter
	l.after(maxLookup, func() {})
	if limit := l.limit(); limit < 0 || limit > trimQuiet {
		t.Errorf("the loop sleeps for %v", limit)
	}
}
