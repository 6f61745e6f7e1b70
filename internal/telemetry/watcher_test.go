package telemetry_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// line is a line of the log as logLines shows it.
func line(text string, fields ...string) string {
	slices.Sort(fields)
	return text + " " + strings.Join(fields, " ")
}

// publisherFields are those that name the publisher of a registration.
func publisherFields(r conductor.Registration, more ...string) []string {
	return append(more, "type=vLLM", "model=m", "tenant=t", "instance="+r.Instance, fmt.Sprint("rank=", r.Rank),
		"block_size=4", "endpoint="+r.Endpoint)
}

// exampleOf is a dropped event of a worker as a line names it.
func exampleOf(worker uint64, reason string) string {
	return fmt.Sprintf("map[endpoint:%s rank:0 reason:%s worker:%d]", servicetest.Endpoint(worker, 0), reason, worker)
}

// exampleFrom is what happened to a publisher's stream as a line names it.
func exampleFrom(r conductor.Registration, key, text string) string {
	fields := publisherFields(r, key+"="+text)
	slices.Sort(fields)
	for i := range fields {
		fields[i] = strings.Replace(fields[i], "=", ":", 1)
	}
	return "map[" + strings.Join(fields, " ") + "]"
}

// TestWatch follows one stream of either kind through everything that the log
// tells of; nothing new is no line.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		r := servicetest.Registration("i", 0)
		w.Register(r)
		w.Log.Take(t)
		publisher := func(text string, more ...string) string { return line(text, publisherFields(r, more...)...) }
		worker := func(text string, more ...string) string {
			return line(text, append(more, "worker=1", "rank=0", "endpoint="+servicetest.Endpoint(1, 0))...)
		}
		w.Look()
		w.WantLog(worker("info: kv event stream is connecting", "state=connecting"),
			publisher("info: kv event stream is connecting", "state=connecting"))
		w.Look()
		w.WantLog()

		w.Net.At(servicetest.Endpoint(1, 0)).Connect()
		w.Net.At(r.Endpoint).Connect()
		w.Look()
		w.WantLog(worker("info: kv event stream is live", "state=live", "was=connecting"),
			publisher("info: kv event stream is live", "state=live", "was=connecting"))

		// Messages are lost, of one stream.
		ew, ec := w.Engine(1, 0), w.Publisher(r)
		ew.Publish(0, ew.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
		ec.Publish(0, ec.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
		ec.Seq += 3
		ec.Publish(0, ec.Stored(servicetest.Prompt(2, 8), servicetest.BlockSize, nil))
		w.Look()
		w.WantLog(publisher("warn: kv event stream has lost messages", "messages_lost=3", "state=stale", "was=live"))

		// Events that are not used, of both kinds of streams, in one line.
		ew.Publish(0, ew.Stored(servicetest.Prompt(3, 8), 8, servicetest.Dict{"block_size": 8}), servicetest.Dict{"type": "BlockRemoved", "block_hashes": servicetest.List{}})
		ec.Publish(0, ec.Stored(servicetest.Prompt(3, 8), 8, servicetest.Dict{"block_size": 8}), servicetest.List{"Nonsense"})
		ec.Deliver([]byte{0xc1})
		w.Net.At(r.Endpoint).Send([]byte("one frame"))
		w.Look()
		w.WantLog("warn: kv events dropped dropped=map[bad_frames:1 bad_tag:1 block_size_mismatch:2 undecodable_messages:1] examples=[" +
			exampleOf(1, "block_size_mismatch") + " " + exampleFrom(r, "reason", "message has frames of lengths 9") + " " +
			exampleFrom(r, "reason", "message is not a batch of events") + " " + exampleFrom(r, "reason", "block_size_mismatch") + "]")
		w.Look()
		w.WantLog()

		// The publisher goes, and comes back as another engine.
		w.Net.At(r.Endpoint).Status(false)
		w.Look()
		w.WantLog(publisher("warn: kv event stream has lost its connection", "state=connecting", "was=stale"))
		w.Net.At(r.Endpoint).Connect()
		ec.Seq = 0
		ec.Publish(0, ec.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
		w.Look()
		w.WantLog(publisher("warn: engine of a kv event stream has restarted: its blocks are gone", "restarts=1", "state=live", "was=connecting"))

		w.Unregister(servicetest.Instance("i"), "i|t|0")
		w.Log.Take(t)
		w.Look()
		w.WantLog() // a stream that is gone is no news
	})
}

// TestWatchBrokenConnection: a connection that is lost and comes back between two looks is told of, with what
// it cost.
func TestWatchBrokenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		at := w.Net.At(servicetest.Endpoint(1, 0))
		at.Connect()
		w.Look()
		w.Log.Take(t)
		fields := []string{"worker=1", "rank=0", "endpoint=" + servicetest.Endpoint(1, 0), "state=live"}
		at.Status(false)
		synctest.Wait()
		at.Connect()
		w.Look()
		w.WantLog(line("info: kv event stream had lost its connection, and has it again", fields...))
		w.Look()
		w.WantLog()

		e := w.Engine(1, 0)
		for i := range uint32(3) {
			e.Publish(0, e.Stored(servicetest.Prompt(i, 8), servicetest.BlockSize, nil))
		}
		at.Status(false)
		synctest.Wait()
		at.Connect()
		e.Seq = 0
		e.Publish(0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
		w.Look()
		w.WantLog(line("warn: engine of a kv event stream has restarted: its blocks are gone", append(fields, "restarts=1")...))
	})
}

// TestStreamObserver: streams beyond a bound are counted, those that are gone or at another endpoint are no news, and a
// look forgets.
func TestStreamObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		streams := telemetry.Streams{Workers: w.Parts().Streams, Conductor: w.Conductor().Streams()}
		o := new(telemetry.StreamObserver)
		here := kvevents.Transition{Rank: catalog.Rank{Worker: 1}, Endpoint: servicetest.Endpoint(1, 0), State: kvevents.Live}
		gone, moved := here, here
		gone.Rank.Worker, moved.Endpoint = 2, "tcp://other:1"
		for _, c := range []struct {
			observed []kvevents.Transition
			want     int
		}{
			{[]kvevents.Transition{here}, 1},
			{nil, 0},
			{[]kvevents.Transition{gone}, 0},
			{[]kvevents.Transition{moved}, 0},
			{[]kvevents.Transition{moved, here}, 1},
			{[]kvevents.Transition{here, gone}, 1},
		} {
			for _, one := range c.observed {
				o.Worker(one)
			}
			if news, more := telemetry.TakeNews(o, streams); news != c.want || more != 0 {
				t.Errorf("%+v: %d news, %d more, want %d", c.observed, news, more, c.want)
			}
		}
		o.Worker(here)
		for worker := range uint64(telemetry.MaxNews + 9) {
			gone.Rank.Worker = 10 + worker
			o.Worker(gone)
		}
		o.Worker(here) // of a stream that it knows
		if news, more := telemetry.TakeNews(o, streams); news != 1 || more != 10 {
			t.Errorf("%d news, %d more", news, more)
		}
	})
}

// TestWatchCopies: copies of blocks are counted, unless the worker says otherwise or
// announces more than it has room for: that is said once.
func TestWatchCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1, servicetest.Total(5)))
		w.Net.At(servicetest.Endpoint(1, 0)).Connect()
		e, a := w.Engine(1, 0), servicetest.Prompt(1, 8)
		store, remove := e.Stored(a, servicetest.BlockSize, nil), e.Removed(a, servicetest.BlockSize, 1, "GPU")
		e.Publish(0, store, store, remove)
		w.WantDevice(a, "1/0:2")
		w.WantSeries("index_block_copies 1", "kv_copies_as_set_total 0")
		w.Look()
		w.Log.Take(t)

		w.Patch(1, catalog.Patch{KVEventCopies: new(catalog.SetCopies)})
		e.Publish(0, store, store, remove)
		w.WantDevice(a, "1/0:1")
		w.WantSeries("index_block_copies 0")

		w.Patch(1, catalog.Patch{KVEventCopies: new(catalog.CountCopies)})
		e.Publish(0, store, store, store, store, remove)
		w.WantDevice(a, "1/0:1")
		w.WantSeries("kv_copies_as_set_total 1")
		w.Look()
		w.WantLog("warn: kv events announce more copies of blocks than there is room for: they are not counted any more; " +
			"kv_event_copies of such a worker is to be set examples=[" + exampleOf(1, "more copies of blocks than total_kv_blocks") + "] streams=1")
		e.Publish(0, store, store, store)
		w.Look()
		w.WantLog()
	})
}

// TestWatchAnotherEndpoint: a rank that is followed at another endpoint has
// another stream; it has lost no connection and no messages.
func TestWatchAnotherEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		w.Net.At(servicetest.Endpoint(1, 0)).Connect()
		w.Look()
		w.Log.Take(t)
		w.Patch(1, catalog.Patch{KVEventsEndpoints: map[uint32]string{0: "tcp://other:1"}})
		w.Look()
		w.WantLog(line("info: kv event stream is connecting", "worker=1", "rank=0", "endpoint=tcp://other:1", "state=connecting"))
		w.Look()
		w.WantLog()
	})
}

// TestWatchReplays: a replay that failed is in the log, one that did not is not.
func TestWatchReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		const replay = "tcp://i:6000"
		r := servicetest.Registration("i", 0, func(r *conductor.Registration) { r.Replay = replay })
		w.Register(r)
		w.Net.At(r.Endpoint).Connect()
		synctest.Wait()
		w.Net.At(replay).Send(nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
		w.Log.Take(t)
		w.Look()
		if got := w.Log.Take(t); len(got) != 1 || !strings.Contains(got[0], "stream is live") {
			t.Errorf("after a replay that was complete: %q", got)
		}

		e := w.Publisher(r)
		e.Publish(0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
		e.Seq++
		e.Publish(0, e.Stored(servicetest.Prompt(2, 8), servicetest.BlockSize, nil))
		w.Look() // nobody answers the replay
		got := w.Log.Take(t)
		if len(got) != 2 || !strings.Contains(got[0], "lost messages") || !strings.Contains(got[0], "replays=1") ||
			got[1] != "warn: replays of kv event streams failed or had gaps examples=["+exampleFrom(r, "result", "silent")+"] replays=map[silent:1]" {
			t.Errorf("after a replay that nobody answered: %q", got)
		}
	})
}

// TestWatchBadEvents: however much of whatever kind is dropped, a look writes one
// line with the first of each kind, which has nothing of what was sent.
func TestWatchBadEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		for worker := range uint64(3) {
			w.Put(servicetest.Record(worker+1, 1))
			w.Net.At(servicetest.Endpoint(worker+1, 0)).Connect()
		}
		r := servicetest.Registration("i", 0)
		w.Register(r)
		w.Look()
		w.Log.Take(t)
		const secret = "a prompt that nobody else may see"
		engines := [...]*servicetest.Engine{w.Engine(3, 0), w.Engine(2, 0), w.Engine(1, 0)}
		for range 100 {
			for _, e := range engines {
				e.Publish(0, servicetest.List{secret}, servicetest.List{"BlockStored", servicetest.List{1}, nil, servicetest.List{secret}, servicetest.BlockSize, nil, secret, secret})
				e.Deliver([]byte(secret))
				w.Net.At(e.Address).Send([]byte(secret), []byte(secret))
				synctest.Wait()
			}
		}
		w.Look()
		w.WantLog("warn: kv events dropped dropped=map[bad_frames:300 bad_tag:300 bad_token:300 undecodable_messages:300] examples=[" +
			exampleOf(3, "message has frames of lengths 33 33") + " " +
			exampleOf(3, "message is not a batch of events") + " " + exampleOf(3, "bad_tag") + "]")

		engines[1].Deliver([]byte(secret))
		w.Look()
		w.WantLog("warn: kv events dropped dropped=map[undecodable_messages:1] examples=[" +
			exampleOf(2, "message is not a batch of events") + "]")
		ec := w.Publisher(r)
		ec.Deliver([]byte(secret))
		synctest.Wait()
		w.Unregister(servicetest.Instance("i"), "i|t|0")
		w.Log.Take(t)
		w.Look() // of a publisher that is gone there is no example
		w.WantLog("warn: kv events dropped dropped=map[undecodable_messages:1]")
	})
}

// TestWatchNamesFewReplays: of many replays that failed a line names a few.
func TestWatchNamesFewReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		for rank := range uint32(9) {
			r := servicetest.Registration("i", rank, func(r *conductor.Registration) { r.Replay = fmt.Sprint("tcp://i:", 6000+rank) })
			w.Register(r)
			w.Net.At(r.Endpoint).Connect()
		}
		w.Log.Take(t)
		w.Look()
		got := w.Log.Take(t)
		if len(got) != 10 || !strings.HasPrefix(got[9], "warn: replays of kv event streams failed or had gaps examples=[map[") ||
			!strings.HasSuffix(got[9], "]] replays=map[silent:9]") || strings.Count(got[9], "result:silent") != 5 {
			t.Errorf("%d lines: %s", len(got), strings.Join(got, "\n"))
		}
	})
}

// TestWatchIsBounded: however many streams change, a look writes so many lines,
// the bad ones first, and one that counts the rest; so does a request.
func TestWatchIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		for rank := range uint32(50) {
			w.Register(servicetest.Registration("i", rank))
		}
		lost := servicetest.Registration("lost", 0)
		w.Register(lost)
		w.Net.At(lost.Endpoint).Connect()
		w.Look()
		w.Log.Take(t)
		for rank := range uint32(50) {
			w.Net.At(servicetest.Registration("i", rank).Endpoint).Connect()
		}
		w.Net.At(lost.Endpoint).Status(false)
		w.Look()
		got := w.Log.Take(t)
		if len(got) != 21 || !strings.HasPrefix(got[0], "warn: kv event stream has lost its connection") ||
			!strings.HasPrefix(got[19], "info: kv event stream is live") || got[20] != "info: more kv event streams have changed more=31" {
			t.Errorf("%d lines: %s", len(got), strings.Join(got, "\n"))
		}

		if _, err := w.Conductor().Unregister(servicetest.Instance("i")); err != nil {
			t.Fatal(err)
		}
		if got := w.Log.Take(t); len(got) != 21 || got[20] != "info: more publishers unregistered more=30" {
			t.Errorf("%d lines: %s", len(got), strings.Join(got, "\n"))
		}
	})
}
