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
		b.Run(topic, func(b *testing.B) {
			r, l := newTestReplica(fixedScopes{benchScope: 16})
			l.PutRank(benchScope, 0, benchRank)
			enc, dec := newEncoder(), newReader()
			rnd := rand.New(rand.NewPCG(1, 1))
			e := benchEvent()
			e.hashes = make([]uint64, 3250)
			for i := range e.hashes {
				e.hashes[i] = rnd.Uint64()
			}
			e.origin = reservations.Origin{Process: e.sender, Sequence: e.sequence}
			r.applyMessage(dec, "tcp://p:1", TopicEvents, enc.event(e))
			e.prefix = reservations.Prefix{Origin: e.origin, ID: e.id, Blocks: 3125}
			e.id = "another"
			wire := 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for i := range e.hashes[3125:] {
					e.hashes[3125+i] = rnd.Uint64()
				}
				e.sequence++
				e.kind, e.origin = booked, reservations.Origin{Process: e.sender, Sequence: e.sequence}
				payload := enc.event(e)
				if topic == TopicReservations {
					payload = enc.reservation(e)
				}
				payload, wire = bytes.Clone(payload), len(payload)
				b.StartTimer()
				r.applyMessage(dec, "tcp://p:1", topic, payload)
				e.sequence++
				e.kind = freed
				r.applyMessage(dec, "tcp://p:1", TopicEvents, enc.event(e))
			}
			if n := l.Stats(); n.Booked != n.Freed+1 || n.Freed != uint64(b.N) {
				b.Fatalf("%+v", n)
			}
			b.ReportMetric(float64(wire), "wire-B")
		})
	}
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
