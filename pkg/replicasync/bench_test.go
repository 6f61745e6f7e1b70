package replicasync

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/reservations"
)

// benchEvent books 128 blocks, as a prompt of 2,048 tokens does.
func benchEvent() *event {
	rnd := rand.New(rand.NewPCG(1, 1))
	e := &event{
		kind: booked, sender: rnd.Uint64(), sequence: 1 << 20, scope: benchScope, blockSize: 16,
		id: "c2e9a1de-0f5c-4a8e-9d2b-7a0d3c1b5e6f", rank: benchRank,
		hashes: make([]uint64, 128), track: true, hinted: true, prefillTokens: 2048,
	}
	for i := range e.hashes {
		e.hashes[i] = rnd.Uint64()
	}
	return e
}

func BenchmarkEncode(b *testing.B) {
	enc, e := newEncoder(), benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		enc.event(e)
	}
}

func BenchmarkDecode(b *testing.B) {
	payload, dec := bytes.Clone(newEncoder().event(benchEvent())), newReader()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := dec.event(payload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReceiveLong is the way of a reservation of 3,250 blocks, 3,125 of which are active on its
// rank, and of its end, from the wire into the ledger: with all blocks listed, and with a prefix.
// wire-B are the bytes of the reservation.
func BenchmarkReceiveLong(b *testing.B) {
	for _, topic := range []string{TopicEvents, TopicReservations} {
		b.Run(topic, func(b *testing.B) { benchmarkReceiveLong(b, topic) })
	}
}

func benchmarkReceiveLong(b *testing.B, topic string) {
	r, l := newTestReplica(fixedScopes{benchScope: 16})
	l.PutRank(benchScope, 0, benchRank)
	enc, dec := newEncoder(), newReader()
	rnd := rand.New(rand.NewPCG(1, 1))
	e := benchEvent()
	e.hashes = make([]uint64, 3250)
	for i := range e.hashes {
		e.hashes[i] = rnd.Uint64()
	}
	r.core.onAnnouncement("tcp://p:1", announcement{process: e.sender, url: "http://p:1", sequence: e.sequence}, r.now())
	if err := r.core.confirm(fetchRequest{process: e.sender, peer: "tcp://p:1", url: "http://p:1"}, e.sequence, ""); err != nil {
		b.Fatal(err)
	}
	step := func(k kind) []byte {
		e.sequence++
		if e.kind = k; k == booked {
			e.origin = reservations.Origin{Process: e.sender, Sequence: e.sequence}
			for i := range e.hashes[3125:] {
				e.hashes[3125+i] = rnd.Uint64()
			}
			if topic == TopicReservations && e.id == "another" {
				return bytes.Clone(enc.reservation(e))
			}
		}
		return bytes.Clone(enc.event(e))
	}
	for _, id := range []string{"one", "two"} { // which stay
		e.id = id
		r.applyMessage(dec, "tcp://p:1", TopicEvents, step(booked))
	}
	e.prefix = reservations.Prefix{Origin: e.origin, ID: e.id, Blocks: 3125}
	e.id = "another"
	type message struct {
		topic   string
		payload []byte
	}
	var messages []message
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if len(messages) == 0 {
			b.StopTimer()
			for range 100 {
				messages = append(messages, message{topic, step(booked)}, message{TopicEvents, step(freed)})
			}
			b.StartTimer()
		}
		for _, m := range messages[:2] {
			r.applyMessage(dec, "tcp://p:1", m.topic, m.payload)
		}
		messages = messages[2:]
	}
	if n := l.Stats(); n.Booked != n.Freed+2 || n.Freed != uint64(b.N) {
		b.Fatalf("%+v", n)
	}
	e.kind = booked
	b.ReportMetric(float64(len(step(booked))), "wire-B")
}

// BenchmarkApply is the way of a reservation and its end from the wire into the
// ledger.
func BenchmarkApply(b *testing.B) {
	r, l := newTestReplica(fixedScopes{benchScope: 16})
	l.PutRank(benchScope, 0, benchRank)
	e, enc, dec := benchEvent(), newEncoder(), newReader()
	b.ReportAllocs()
	for b.Loop() {
		e.sequence++
		e.kind, e.origin = booked, reservations.Origin{Process: e.sender, Sequence: e.sequence}
		r.applyMessage(dec, "tcp://p:1", TopicEvents, enc.event(e))
		e.sequence++
		e.kind = freed
		r.applyMessage(dec, "tcp://p:1", TopicEvents, enc.event(e))
	}
	b.ReportMetric(float64(2*b.N)/b.Elapsed().Seconds(), "events/s")
}
