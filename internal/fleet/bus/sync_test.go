package bus

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/select-service/select-service/pkg/replicasync"
)

// TestBatches proves when messages wait for others: not below busyRate, above it for linger or until
// there are lingerBytes; that a batch has them in order, and none above the server's limit.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards sent and longest
		var sent [][]string
		var longest time.Duration
		o := newOutgoing(func(batch []byte, messages int) error {
			mu.Lock()
			defer mu.Unlock()
			var in []string
			err := eachMessage(slices.Clone(batch), func(_ string, payload []byte) {
				in = append(in, string(payload))
				if put, err := time.Parse(time.RFC3339Nano, string(payload)); err == nil {
					longest = max(longest, time.Since(put))
				}
			})
			if err != nil {
				t.Error(err)
			}
			if len(in) != messages {
				t.Errorf("a batch of %d messages says %d", len(in), messages)
			}
			sent = append(sent, in)
			return nil
		})
		put := func(payload string) {
			if err := o.put(0, []byte(payload), 1<<20); err != nil {
				t.Error(err)
			}
		}
		for range 100 { // 500 a second
			put("x")
			time.Sleep(2 * time.Millisecond)
		}
		if len(sent) != 100 {
			t.Errorf("%d batches of 100 messages at 500 a second", len(sent))
		}
		time.Sleep(time.Second)
		sent = nil
		for range 3000 { // 10,000 a second
			put(time.Now().Format(time.RFC3339Nano))
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(linger)
		synctest.Wait()
		if n := len(sent); n > 600 {
			t.Errorf("%d batches of 3,000 messages at 10,000 a second", n)
		}
		if longest > linger {
			t.Errorf("a message waited %v", longest)
		}
		if total := len(slices.Concat(sent...)); total != 3000 {
			t.Errorf("%d of 3,000 messages were sent", total)
		}
		sent = nil
		put(string(make([]byte, lingerBytes)))
		if len(sent) != 1 {
			t.Error("a large batch waits")
		}
		if err := o.put(0, make([]byte, 1<<20), 1<<20); !errors.Is(err, errLarge) {
			t.Errorf("a message above the server's limit: %v", err)
		}
	})
}

// FuzzBatch proves that no batch makes the reader panic, and that what it hands out lies within.
func FuzzBatch(f *testing.F) {
	f.Add([]byte{batchVersion, 0, 3, 'a', 'b', 'c', 200, 1, 'd'})
	f.Add([]byte{batchVersion, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, batch []byte) {
		total := 0
		err := eachMessage(batch, func(topic string, payload []byte) {
			total += len(payload)
			if !slices.Contains(replicasync.Topics(true), topic) {
				t.Errorf("topic %q", topic)
			}
		})
		if total > len(batch) || len(batch) == 0 && err == nil {
			t.Errorf("%d bytes of %d, %v", total, len(batch), err)
		}
	})
}

// TestAnswerWaits proves that no more than a window of an answer is sent before who has asked has used
// some of it, that the rest then follows, and that an answer that nobody uses is given up.
func TestAnswerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []*nats.Msg
		w := newPartWriter(t.Context(), func(m *nats.Msg) error {
			sent = append(sent, m)
			return nil
		}, "b", "inbox", 4)
		written := make(chan error, 1)
		go func() {
			_, err := w.Write(make([]byte, 4*3*window))
			written <- err
		}()
		for _, used := range []int{0, window / 2, window + 1} {
			w.use(used)
			synctest.Wait()
			if len(sent) != used+window {
				t.Errorf("%d parts were sent of which %d are used, want %d", len(sent), used, used+window)
			}
		}
		err := <-written
		if !errors.Is(err, errUnused) {
			t.Errorf("an answer that is not used: %v", err)
		}
		w.end(err)
		if last := sent[len(sent)-1]; len(last.Data) > 0 || last.Header.Get(endHeader) != errUnused.Error() {
			t.Errorf("it ends with %v", last.Header)
		}
	})
}

// TestAnswersOfOne proves that a replica that leaves its answers unread keeps no other one waiting, and that its places
// are its own again when an answer has ended.
func TestAnswersOfOne(t *testing.T) {
	a := answers{by: make(map[string]*partWriter)}
	var taken []*partWriter
	ask := func(asker string, inbox int) error {
		w := newPartWriter(t.Context(), nil, asker, fmt.Sprint(asker, inbox), 4)
		err := a.begin(w)
		if err == nil {
			taken = append(taken, w)
		}
		return err
	}
	for i := range 64 {
		if err := ask("greedy", i); (err == nil) != (i < maxOfOne) {
			t.Errorf("answer %d of one: %v", i, err)
		}
	}
	for i := range (maxAnswers - maxOfOne) / maxOfOne {
		for k := range maxOfOne {
			if err := ask(fmt.Sprint("other", i), k); err != nil {
				t.Errorf("answer %d of another: %v", k, err)
			}
		}
	}
	if err := ask("late", 0); !errors.Is(err, errBusy) {
		t.Errorf("more than there are places: %v", err)
	}
	a.end(taken[0])
	if err := ask("greedy", 64); err != nil {
		t.Errorf("after the end of an answer: %v", err)
	}
}

// TestInboxes proves that a replica is answered below its own inboxes, and nowhere else.
func TestInboxes(t *testing.T) {
	c := &Conn{config: Config{Fleet: "f", Replica: "a"}}
	for subject, is := range map[string]bool{
		"_INBOX.f.b.x": true, "_INBOX.f.b.x.y": true, "_INBOX.f.b": false, "_INBOX.f.b.": false, "": false, "orders.important": false,
		"_INBOX.bar.b.x": false, "_INBOX.f.c.x": false, "_INBOX.f.bb.x": false, "_INBOX.f.b.>": false, "_INBOX.f.b.*": false,
	} {
		if c.answersTo("b", subject) != is {
			t.Errorf("b may be answered at %q: %v", subject, !is)
		}
	}
}

// TestNames proves which names can be in a subject, and that every host's name gives one.
func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"a": true, "Pod-1_x": true, "": false, "a.b": false, "a b": false, "*": false, ">": false} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	for host, want := range map[string]string{"pod-1.example.com": "pod-1-example-com", "ü": "--"} {
		if got := NameOf(host); got != want || CheckName(got) != nil {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}
