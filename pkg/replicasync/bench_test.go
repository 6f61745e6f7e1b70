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
