package service_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/catalog"
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

// TestConductorLog: what comes, goes or is refused has a line, which says
// neither salt nor more of a text than a log can take; the same again has none.
func TestConductorLog(t *testing.T) {
	w := start(t)
	r := registration("i", 1, func(r *conductor.Registration) { r.Salt, r.LoRA = "secret", "sql" })
	w.register(r)
	w.register(r)
	w.wantLog(line("info: publisher registered", publisherFields(r, "lora=sql")...))

	other := r
	other.HashSeed = 7
	if err := w.Conductor().Register(other); err == nil {
		t.Fatal("registered with another hash seed")
	}
	w.wantLog(line("warn: registration of a publisher refused", publisherFields(r, "lora=sql", "reason=already_registered", "field=hash_seed",
		`error=instance "i" rank 1 is already registered at tcp://i:5001 with replay endpoint "" and hash seed 1337`)...))
	other.Instance = "j"
	if err := w.Conductor().Register(other); err == nil {
		t.Fatal("registered with another hash seed")
	}
	if got := strings.Join(w.log.take(t), "\n"); strings.Contains(got, "secret") || !strings.Contains(got, "reason=hash_seed_mismatch") {
		t.Errorf("log is %s", got)
	}
	other.Instance, other.Endpoint, other.Salt = strings.Repeat("i", 1<<20), strings.Repeat("e", 1<<20), "secret"+strings.Repeat("s", 1<<20)
	if err := w.Conductor().Register(other); err == nil {
		t.Fatal("registered with long names")
	}
	if got := strings.Join(w.log.take(t), "\n"); len(got) > 2000 || strings.Contains(got, "secret") || !strings.Contains(got, "reason=invalid_field") {
		t.Errorf("log is %d bytes: %.2000s", len(got), got)
	}

	f := instance("i")
	f.Salt = new("wrong secret")
	if _, err := w.Conductor().Unregister(f); err == nil {
		t.Fatal("unregistered with another salt")
	}
	w.wantLog(line("warn: unregistration of publishers refused", "instance=i", "tenant=t", "reason=not_found",
		"error=no registration of instance i, tenant t matches the additionalsalt given"))
	w.unregister(instance("i"), "i|t|1")
	w.wantLog(line("info: publisher unregistered", publisherFields(r, "lora=sql")...))
}

// exampleOf is a dropped event of a worker as a line names it.
func exampleOf(worker uint64, reason string) string {
	return fmt.Sprintf("map[endpoint:%s rank:0 reason:%s worker:%d]", endpoint(worker, 0), reason, worker)
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

// look lets the time of one look at the streams pass.
func (w *world) look() {
	synctest.Wait()
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// TestWatch follows one stream of either kind through everything that the log
// tells of; nothing new is no line.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.put(record(1, 1))
		r := registration("i", 0)
		w.register(r)
		w.log.take(t)
		publisher := func(text string, more ...string) string { return line(text, publisherFields(r, more...)...) }
		worker := func(text string, more ...string) string {
			return line(text, append(more, "worker=1", "rank=0", "endpoint="+endpoint(1, 0))...)
		}
		w.look()
		w.wantLog(worker("info: kv event stream is connecting", "state=connecting"),
			publisher("info: kv event stream is connecting", "state=connecting"))
		w.look()
		w.wantLog()

		w.net.at(endpoint(1, 0)).connect()
		w.net.at(r.Endpoint).connect()
		w.look()
		w.wantLog(worker("info: kv event stream is live", "state=live", "was=connecting"),
			publisher("info: kv event stream is live", "state=live", "was=connecting"))

		// Messages are lost, of one stream.
		ew, ec := w.engine(1, 0), w.publisher(r)
		ew.publish(0, ew.stored(prompt(1, 8), blockSize, nil))
		ec.publish(0, ec.stored(prompt(1, 8), blockSize, nil))
		ec.seq += 3
		ec.publish(0, ec.stored(prompt(2, 8), blockSize, nil))
		w.look()
		w.wantLog(publisher("warn: kv event stream has lost messages", "messages_lost=3", "state=stale", "was=live"))

		// Events that are not used, of both kinds of streams, in one line.
		ew.publish(0, ew.stored(prompt(3, 8), 8, dict{"block_size": 8}), dict{"type": "BlockRemoved", "block_hashes": list{}})
		ec.publish(0, ec.stored(prompt(3, 8), 8, dict{"block_size": 8}), list{"Nonsense"})
		ec.deliver([]byte{0xc1})
		w.net.at(r.Endpoint).send([]byte("one frame"))
		w.look()
		w.wantLog("warn: kv events dropped dropped=map[bad_frames:1 bad_tag:1 block_size_mismatch:2 undecodable_messages:1] examples=[" +
			exampleOf(1, "block_size_mismatch") + " " + exampleFrom(r, "reason", "message has frames of lengths 9") + " " +
			exampleFrom(r, "reason", "message is not a batch of events") + " " + exampleFrom(r, "reason", "block_size_mismatch") + "]")
		w.look()
		w.wantLog()

		// The publisher goes, and comes back as another engine.
		w.net.at(r.Endpoint).status(false)
		w.look()
		w.wantLog(publisher("warn: kv event stream has lost its connection", "state=connecting", "was=stale"))
		w.net.at(r.Endpoint).connect()
		ec.seq = 0
		ec.publish(0, ec.stored(prompt(1, 8), blockSize, nil))
		w.look()
		w.wantLog(publisher("warn: engine of a kv event stream has restarted: its blocks are gone", "restarts=1", "state=live", "was=connecting"))

		w.unregister(instance("i"), "i|t|0")
		w.log.take(t)
		w.look()
		w.wantLog() // a stream that is gone is no news
	})
}

// TestWatchAnotherEndpoint: a rank that is followed at another endpoint has
// another stream; it has lost no connection and no messages.
func TestWatchAnotherEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.put(record(1, 1))
		w.net.at(endpoint(1, 0)).connect()
		w.look()
		w.log.take(t)
		w.patch(1, catalog.Patch{KVEventsEndpoints: map[uint32]string{0: "tcp://other:1"}})
		w.look()
		w.wantLog(line("info: kv event stream is connecting", "worker=1", "rank=0", "endpoint=tcp://other:1", "state=connecting"))
		w.look()
		w.wantLog()
	})
}

// TestWatchReplays: a replay that failed is in the log, one that did not is not.
func TestWatchReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		const replay = "tcp://i:6000"
		r := registration("i", 0, func(r *conductor.Registration) { r.Replay = replay })
		w.register(r)
		w.net.at(r.Endpoint).connect()
		synctest.Wait()
		w.net.at(replay).send(nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
		w.log.take(t)
		w.look()
		if got := w.log.take(t); len(got) != 1 || !strings.Contains(got[0], "stream is live") {
			t.Errorf("after a replay that was complete: %q", got)
		}

		e := w.publisher(r)
		e.publish(0, e.stored(prompt(1, 8), blockSize, nil))
		e.seq++
		e.publish(0, e.stored(prompt(2, 8), blockSize, nil))
		w.look() // nobody answers the replay
		got := w.log.take(t)
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
		w := start(t)
		for worker := range uint64(3) {
			w.put(record(worker+1, 1))
			w.net.at(endpoint(worker+1, 0)).connect()
		}
		r := registration("i", 0)
		w.register(r)
		w.look()
		w.log.take(t)
		const secret = "a prompt that nobody else may see"
		engines := [...]*engine{w.engine(3, 0), w.engine(2, 0), w.engine(1, 0)}
		for range 100 {
			for _, e := range engines {
				e.publish(0, list{secret}, list{"BlockStored", list{1}, nil, list{secret}, blockSize, nil, secret, secret})
				e.deliver([]byte(secret))
				w.net.at(e.endpoint).send([]byte(secret), []byte(secret))
				synctest.Wait()
			}
		}
		w.look()
		w.wantLog("warn: kv events dropped dropped=map[bad_frames:300 bad_tag:300 bad_token:300 undecodable_messages:300] examples=[" +
			exampleOf(3, "message has frames of lengths 33 33") + " " +
			exampleOf(3, "message is not a batch of events") + " " + exampleOf(3, "bad_tag") + "]")

		engines[1].deliver([]byte(secret))
		w.look()
		w.wantLog("warn: kv events dropped dropped=map[undecodable_messages:1] examples=[" +
			exampleOf(2, "message is not a batch of events") + "]")
		ec := w.publisher(r)
		ec.deliver([]byte(secret))
		synctest.Wait()
		w.unregister(instance("i"), "i|t|0")
		w.log.take(t)
		w.look() // of a publisher that is gone there is no example
		w.wantLog("warn: kv events dropped dropped=map[undecodable_messages:1]")
	})
}

// TestWatchNamesFewReplays: of many replays that failed a line names a few.
func TestWatchNamesFewReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for rank := range uint32(9) {
			r := registration("i", rank, func(r *conductor.Registration) { r.Replay = fmt.Sprint("tcp://i:", 6000+rank) })
			w.register(r)
			w.net.at(r.Endpoint).connect()
		}
		w.log.take(t)
		w.look()
		got := w.log.take(t)
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
		w := start(t)
		for rank := range uint32(50) {
			w.register(registration("i", rank))
		}
		lost := registration("lost", 0)
		w.register(lost)
		w.net.at(lost.Endpoint).connect()
		w.look()
		w.log.take(t)
		for rank := range uint32(50) {
			w.net.at(registration("i", rank).Endpoint).connect()
		}
		w.net.at(lost.Endpoint).status(false)
		w.look()
		got := w.log.take(t)
		if len(got) != 21 || !strings.HasPrefix(got[0], "warn: kv event stream has lost its connection") ||
			!strings.HasPrefix(got[19], "info: kv event stream is live") || got[20] != "info: more kv event streams have changed more=31" {
			t.Errorf("%d lines: %s", len(got), strings.Join(got, "\n"))
		}

		if _, err := w.Conductor().Unregister(instance("i")); err != nil {
			t.Fatal(err)
		}
		if got := w.log.take(t); len(got) != 21 || got[20] != "info: more publishers unregistered more=30" {
			t.Errorf("%d lines: %s", len(got), strings.Join(got, "\n"))
		}
	})
}
