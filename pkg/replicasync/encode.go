package replicasync

import (
	"bytes"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/reservations"
)

// encoder writes messages into a buffer of its own. Use it from one goroutine.
type encoder struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
}

func newEncoder() *encoder {
	e := &encoder{}
	e.enc = msgpack.NewEncoder(&e.buf)
	return e
}

// maxSpare is the largest buffer, in bytes, that is kept for the next message.
const maxSpare = 1 << 20

func (e *encoder) reset() {
	if e.buf.Cap() > maxSpare {
		e.buf = bytes.Buffer{}
		e.enc = msgpack.NewEncoder(&e.buf)
	}
	e.buf.Reset()
}

// The writes below cannot fail: the buffer is memory.

func (e *encoder) fields(n int)             { _ = e.enc.EncodeMapLen(n) }
func (e *encoder) string(key, value string) { e.key(key); e.text(value) }
func (e *encoder) key(key string)           { e.text(key) }
func (e *encoder) text(s string)            { _ = e.enc.EncodeString(s) }
func (e *encoder) bool(key string, v bool)  { e.key(key); _ = e.enc.EncodeBool(v) }
func (e *encoder) null(key string)          { e.key(key); _ = e.enc.EncodeNil() }
func (e *encoder) uint(key string, v uint64) {
	e.key(key)
	_ = e.enc.EncodeUint(v)
}

// event returns the message for TopicEvents, TopicLeases and those of sessions, valid until the
// next call. It lists all blocks.
func (e *encoder) event(ev *event) []byte { return e.encode(ev, reservations.Prefix{}) }

// reservation returns the message for TopicReservations, valid until the next call. The event has
// a prefix and all blocks.
func (e *encoder) reservation(ev *event) []byte {
	p := ev.prefix
	p.Digest = reservations.DigestOf(ev.hashes[:p.Blocks])
	rest := *ev
	rest.hashes = ev.hashes[p.Blocks:]
	return e.encode(&rest, p)
}

// encode writes an event whose prompt is p and then its hashes.
func (e *encoder) encode(ev *event, p reservations.Prefix) []byte {
	e.reset()
	if int(ev.kind) >= numSteps {
		e.session(ev)
		return e.buf.Bytes()
	}
	more := 0
	if ev.kind != booked { // the reservation is named
		more = 2
	} else {
		if ev.lease > 0 {
			more++
		}
		if ev.pair {
			more++
		}
	}
	e.fields(7 + more)
	e.string("model_name", ev.scope.Model)
	e.string("tenant_id", ev.scope.Tenant) // 1.3.x
	e.string("routing_group", ev.scope.Tenant)
	e.uint("block_size", uint64(ev.blockSize))
	e.key("event")
	e.fields(5)
	e.string("request_id", ev.id)
	e.key("worker")
	e.fields(2)
	e.uint("worker_id", ev.rank.Worker)
	e.uint("dp_rank", uint64(ev.rank.DP))
	e.key("data")
	switch ev.kind {
	case booked:
		e.fields(1)
		e.key(variants[booked])
		e.booked(ev, p)
	default:
		e.text(variants[ev.kind])
	}
	e.uint("router_id", ev.sender)
	e.null("lora_name")
	e.uint("sequence", ev.sequence)
	e.bool("per_scope", ev.perScope)
	if ev.kind != booked {
		e.uint("origin_process", ev.origin.Process)
		e.uint("origin_sequence", ev.origin.Sequence)
		return e.buf.Bytes()
	}
	if ev.lease > 0 {
		e.uint("lease_ms", toMilliseconds(ev.lease))
	}
	if ev.pair {
		e.bool("pair", true)
	}
	return e.buf.Bytes()
}

func (e *encoder) booked(ev *event, p reservations.Prefix) {
	if p.Blocks == 0 {
		e.fields(4)
	} else {
		e.fields(5)
		e.prefix(p)
	}
	e.key("token_sequence")
	_ = e.enc.EncodeArrayLen(len(ev.hashes))
	for _, h := range ev.hashes {
		_ = e.enc.EncodeUint(h)
	}
	e.bool("track_prefill_tokens", ev.track)
	if ev.expectedOutput == nil {
		e.null("expected_output_tokens")
	} else {
		e.uint("expected_output_tokens", uint64(*ev.expectedOutput))
	}
	if !ev.hinted {
		e.null("prefill_load_hint")
		return
	}
	e.key("prefill_load_hint")
	e.fields(2)
	e.uint("initial_effective_prefill_tokens", ev.prefillTokens)
	e.null("expected_prefill_duration")
}

func (e *encoder) prefix(p reservations.Prefix) {
	e.key("prefix")
	e.fields(5)
	e.uint("process", p.Origin.Process)
	e.uint("sequence", p.Origin.Sequence)
	e.string("request_id", p.ID)
	e.uint("blocks", uint64(p.Blocks))
	e.uint("digest", p.Digest)
}

// toMilliseconds rounds a positive duration up, so that no other replica has a
// shorter lease.
func toMilliseconds(d time.Duration) uint64 {
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

// announcement returns the message, valid until the next call.
func (e *encoder) announcement(a announcement) []byte {
	e.reset()
	e.fields(5)
	e.uint("process_id", a.process)
	e.string("url", a.url)
	e.uint("sequence", a.sequence)
	e.uint("merged", a.merged)
	e.uint("renewals", a.renewals)
	return e.buf.Bytes()
}
