package replicasync

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

type (
	dict = map[string]any
	list = []any
)

func pack(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// envelope is a message with its data.
func envelope(data any, more ...dict) dict {
	m := dict{
		"model_name": "m", "tenant_id": "t", "block_size": 16,
		"event": dict{
			"request_id": "r", "worker": dict{"worker_id": 7, "dp_rank": 1},
			"data": data, "router_id": 42, "lora_name": nil,
		},
	}
	for _, extra := range more {
		for k, v := range extra {
			if m[k] = v; v == nil {
				delete(m, k)
			}
		}
	}
	return m
}

func adding(fields dict) dict { return dict{"AddRequest": fields} }

// decoded is the event of envelope.
func decoded(k kind, change func(*event)) event {
	e := event{
		kind: k, sender: 42, origin: reservations.Origin{Process: 42},
		scope: catalog.Scope{Model: "m", Tenant: "t"}, blockSize: 16, id: "r", rank: catalog.Rank{Worker: 7, DP: 1},
	}
	if change != nil {
		change(&e)
	}
	return e
}

// TestDecode proves the receive rules, form by form.
func TestDecode(t *testing.T) {
	num := uint32(9)
	tests := map[string]struct {
		message any
		want    event
	}{
		"unit variants as text": {envelope("Free"), decoded(freed, nil)},
		"as a map to nil":       {envelope(dict{"MarkPrefillCompleted": nil}), decoded(prefillCompleted, nil)},
		"as an index":           {envelope(1), decoded(freed, nil)},
		"as a map of an index":  {envelope(map[int]any{2: nil}), decoded(prefillCompleted, nil)},
		"all optional fields missing": {envelope(adding(dict{})), decoded(booked, func(e *event) {
			e.track = true
		})},
		"all nil": {envelope(adding(dict{"token_sequence": nil, "expected_output_tokens": nil, "prefill_load_hint": nil})), decoded(booked, func(e *event) {
			e.track = true
		})},
		"all there": {envelope(adding(dict{
			"token_sequence": list{uint64(math.MaxUint64), 0, int8(5), int64(300)}, "track_prefill_tokens": false,
			"expected_output_tokens": 9, "prefill_load_hint": dict{"initial_effective_prefill_tokens": 3},
		})), decoded(booked, func(e *event) {
			e.hashes, e.expectedOutput, e.hinted, e.prefillTokens = []uint64{math.MaxUint64, 0, 5, 300}, &num, true, 3
		})},
		"a hint that decays counts in full": {envelope(adding(dict{"prefill_load_hint": dict{
			"initial_effective_prefill_tokens": 1000, "expected_prefill_duration": dict{"secs": 10, "nanos": 5},
		}})), decoded(booked, func(e *event) { e.track, e.hinted, e.prefillTokens = true, true, 1000 })},
		"structs as arrays": {list{"m", "t", 16, list{"r", list{7, 1}, map[int]any{0: list{list{4}, true, nil, list{8, list{1, 2}}}}, 42, nil}}, decoded(booked, func(e *event) {
			e.track, e.hashes, e.hinted, e.prefillTokens = true, []uint64{4}, true, 8
		})},
		"arrays with more, and without what is optional": {list{"m", "t", 16, list{"r", list{7, 1, "more"}, 1, 42}, dict{"a": list{1}}}, decoded(freed, nil)},
		"unknown keys":      {envelope("Free", dict{"future": dict{"a": list{1.5, true, nil, []byte{1}, "x", -3}}}), decoded(freed, nil)},
		"routing_group":     {envelope("Free", dict{"tenant_id": nil, "routing_group": "t"}), decoded(freed, nil)},
		"both names, equal": {envelope("Free", dict{"routing_group": "t"}), decoded(freed, nil)},
		"numbered": {envelope(adding(dict{}), dict{"sequence": 8, "per_scope": true}), decoded(booked, func(e *event) {
			e.sequence, e.origin.Sequence, e.perScope, e.track = 8, 8, true, true
		})},
		"leased": {envelope(adding(dict{}), dict{"sequence": 8, "lease_ms": 1500}), decoded(booked, func(e *event) {
			e.sequence, e.origin.Sequence, e.track, e.lease = 8, 8, true, 1500*time.Millisecond
		})},
		"a lease of no reservation": {envelope("Free", dict{"lease_ms": 1500}), decoded(freed, nil)},
		"names the reservation": {envelope("Free", dict{"sequence": 8, "origin_process": 3, "origin_sequence": 2}), decoded(freed, func(e *event) {
			e.sequence, e.origin = 8, reservations.Origin{Process: 3, Sequence: 2}
		})},
		"names a reservation without number": {envelope("Free", dict{"sequence": 8, "origin_process": 3, "origin_sequence": 0}), decoded(freed, func(e *event) {
			e.sequence, e.origin = 8, reservations.Origin{Process: 3}
		})},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newReader()
			for _, payload := range [][]byte{pack(t, tt.message), append(pack(t, tt.message), "trailing"...)} {
				got, err := r.event(payload)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(event{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestDecodeRefuses proves what is no message, and under which reason it counts.
func TestDecodeRefuses(t *testing.T) {
	with := func(change func(inner dict)) dict {
		m := envelope("Free")
		change(m["event"].(dict))
		return m
	}
	deep := bytes.Repeat([]byte{0x91}, 1<<20) // arrays in arrays
	tests := map[string]struct {
		payload []byte
		why     reason
	}{
		"nothing":                {nil, dropMalformed},
		"no map":                 {pack(t, 5), dropMalformed},
		"a negative hash":        {pack(t, envelope(adding(dict{"token_sequence": list{-1}}))), dropMalformed},
		"a hash of nil":          {pack(t, envelope(adding(dict{"token_sequence": list{nil}}))), dropMalformed},
		"a float":                {pack(t, envelope(adding(dict{"token_sequence": list{1.0}}))), dropMalformed},
		"AddRequest alone":       {pack(t, envelope("AddRequest")), dropMalformed},
		"Free with content":      {pack(t, envelope(dict{"Free": 1})), dropMalformed},
		"two variants":           {pack(t, envelope(dict{"Free": nil, "MarkPrefillCompleted": nil})), dropMalformed},
		"an unknown variant":     {pack(t, envelope("Decay")), dropMalformed},
		"another topic's":        {pack(t, envelope("Renew", dict{"sequence": 1, "origin_process": 1, "origin_sequence": 1})), dropMalformed},
		"a lease for ever":       {pack(t, envelope(adding(dict{}), dict{"lease_ms": uint64(maxSpan + 1)})), dropMalformed},
		"a negative lease":       {pack(t, envelope(adding(dict{}), dict{"lease_ms": -1})), dropMalformed},
		"an unknown index":       {pack(t, envelope(3)), dropMalformed},
		"names that differ":      {pack(t, envelope("Free", dict{"routing_group": "u"})), dropNamesDiffer},
		"no name":                {pack(t, envelope("Free", dict{"tenant_id": nil})), dropMalformed},
		"no model":               {pack(t, envelope("Free", dict{"model_name": nil})), dropMalformed},
		"no block size":          {pack(t, envelope("Free", dict{"block_size": nil})), dropMalformed},
		"no event":               {pack(t, envelope("Free", dict{"event": nil})), dropMalformed},
		"no request id":          {pack(t, with(func(e dict) { delete(e, "request_id") })), dropMalformed},
		"process 0":              {pack(t, with(func(e dict) { e["router_id"] = 0 })), dropMalformed},
		"rank above u32":         {pack(t, with(func(e dict) { e["worker"] = dict{"worker_id": 1, "dp_rank": 1 << 32} })), dropMalformed},
		"half a worker":          {pack(t, with(func(e dict) { e["worker"] = list{1} })), dropMalformed},
		"sequence 0":             {pack(t, envelope("Free", dict{"sequence": 0})), dropMalformed},
		"sequence near 2^64":     {pack(t, envelope("Free", dict{"sequence": uint64(math.MaxUint64)})), dropMalformed},
		"origin of process 0":    {pack(t, envelope("Free", dict{"origin_process": 0})), dropMalformed},
		"a key that is no text":  {append([]byte{0x81}, 0x01, 0x01), dropMalformed},
		"a key twice":            {append([]byte{0x82}, bytes.Repeat(append(pack(t, "model_name"), pack(t, "m")...), 2)...), dropMalformed},
		"text that is not UTF-8": {append(append([]byte{0x81}, pack(t, "model_name")...), 0xa1, 0xff), dropMalformed},
		"too long":               {make([]byte, MaxPayload+1), dropOversized},
		"a length that is not there": {func() []byte {
			p := pack(t, envelope(adding(dict{"token_sequence": list{7}})))
			i := bytes.Index(p, []byte("token_sequence")) + len("token_sequence")
			return append(append(p[:i:i], 0xdd, 0xff, 0xff, 0xff, 0xff), 7)
		}(), dropMalformed},
		"a prefix":        {pack(t, envelope(adding(dict{"prefix": somePrefix(nil)}), dict{"sequence": 1})), dropMalformed},
		"nested for ever": {append(append([]byte{0x81}, pack(t, "future")...), deep...), dropMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := newReader().event(tt.payload)
			if err == nil {
				t.Fatal("taken")
			}
			if got := reasonOfError(err); got != tt.why {
				t.Errorf("%v counts as %v, want %v", err, got, tt.why)
			}
		})
	}
}

// somePrefix is a prefix on the wire.
func somePrefix(change dict) dict {
	p := dict{"process": 1, "sequence": 2, "request_id": "a", "blocks": 20, "digest": uint64(math.MaxUint64)}
	for k, v := range change {
		if p[k] = v; v == nil {
			delete(p, k)
		}
	}
	return p
}

// TestPrefixRefuses proves what TopicReservations takes.
func TestPrefixRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		prefix any
		more   dict
		why    reason
	}{
		"good":            {somePrefix(nil), nil, applied},
		"none":            {nil, nil, dropMalformed},
		"no number":       {somePrefix(nil), dict{"sequence": nil}, dropMalformed},
		"of process 0":    {somePrefix(dict{"process": 0}), nil, dropMalformed},
		"of number 0":     {somePrefix(dict{"sequence": 0}), nil, dropMalformed},
		"without blocks":  {somePrefix(dict{"blocks": 0}), nil, dropMalformed},
		"without an id":   {somePrefix(dict{"request_id": nil}), nil, dropMalformed},
		"without digest":  {somePrefix(dict{"digest": nil}), nil, dropMalformed},
		"too many blocks": {somePrefix(dict{"blocks": maxHashes + 1}), nil, dropMalformed},
		"and one more":    {somePrefix(dict{"blocks": maxHashes}), nil, dropOversized},
	} {
		more := dict{"sequence": 9}
		for k, v := range tt.more {
			more[k] = v
		}
		_, err := newReader().reservation(pack(t, envelope(adding(dict{"token_sequence": list{7}, "prefix": tt.prefix}), more)))
		why := applied
		if err != nil {
			why = reasonOfError(err)
		}
		if why != tt.why {
			t.Errorf("%s: %v, want %v", name, err, tt.why)
		}
	}
	if _, err := newReader().reservation(pack(t, envelope("Free", dict{"sequence": 1}))); !errors.Is(err, errTopic) {
		t.Errorf("a free: %v", err)
	}
}

// TestPrefixArrives proves that what is sent for an event with a prefix is that, and its whole list
// on the topic of Dynamo.
func TestPrefixArrives(t *testing.T) {
	e := benchEvent()
	e.origin = reservations.Origin{Process: e.sender, Sequence: e.sequence}
	e.prefix = reservations.Prefix{Origin: reservations.Origin{Process: e.sender, Sequence: 5}, ID: "a", Blocks: 100}
	enc, dec := newEncoder(), newReader()
	whole, rest := *e, *e
	whole.prefix = reservations.Prefix{}
	rest.hashes = e.hashes[100:]
	rest.prefix.Digest = reservations.DigestOf(e.hashes[:100])
	got, err := dec.event(enc.event(e))
	if diff := cmp.Diff(whole, got, cmp.AllowUnexported(event{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got, err = dec.reservation(enc.reservation(e))
	if diff := cmp.Diff(rest, got, cmp.AllowUnexported(event{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestHashLimit proves that a list of one-byte numbers cannot grow eightfold
// without bound.
func TestHashLimit(t *testing.T) {
	for n, want := range map[int]error{maxHashes: nil, maxHashes + 1: errOversized} {
		p := pack(t, envelope(adding(dict{"token_sequence": nil})))
		i := bytes.Index(p, []byte("token_sequence")) + len("token_sequence")
		head := []byte{0xdd, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
		p = append(append(append(p[:i:i], head...), make([]byte, n)...), p[i+1:]...)
		if _, err := newReader().event(p); !errors.Is(err, want) {
			t.Errorf("%d hashes: %v, want %v", n, err, want)
		}
	}
}

// TestRoundTrip proves that every event arrives as it was sent.
func TestRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	enc, dec := newEncoder(), newReader()
	for range 2_000 {
		e := event{
			kind: kind(rnd.IntN(numSteps)), sender: rnd.Uint64() | 1, sequence: 1 + rnd.Uint64N(maxSequence),
			scope:     catalog.Scope{Model: strings.Repeat("m", rnd.IntN(300)), Tenant: "t"},
			blockSize: 1 + rnd.Uint32N(math.MaxUint32), id: strings.Repeat("x", rnd.IntN(70)),
			rank: catalog.Rank{Worker: rnd.Uint64(), DP: rnd.Uint32()}, perScope: rnd.IntN(2) == 0,
		}
		if e.kind == booked {
			e.origin = reservations.Origin{Process: e.sender, Sequence: e.sequence}
			e.hashes = make([]uint64, rnd.IntN(20))
			for i := range e.hashes {
				e.hashes[i] = rnd.Uint64() >> rnd.IntN(64)
			}
			e.track = rnd.IntN(2) == 0
			if e.hinted = rnd.IntN(2) == 0; e.hinted {
				e.prefillTokens = rnd.Uint64()
			}
			if rnd.IntN(2) == 0 {
				n := rnd.Uint32()
				e.expectedOutput = &n
			}
			e.lease = time.Duration(rnd.Uint64N(maxSpan)>>rnd.IntN(64)) * time.Millisecond
		} else {
			e.origin = reservations.Origin{Process: rnd.Uint64() | 1, Sequence: 1 + rnd.Uint64N(maxSequence)}
		}
		decode := dec.event
		if e.kind == renewed {
			decode = dec.renewal
		}
		got, err := decode(enc.event(&e))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, got, cmp.AllowUnexported(event{})); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

// TestRenewalRefuses proves that only numbered renewals of numbered reservations are
// taken on their topic.
func TestRenewalRefuses(t *testing.T) {
	good := dict{"sequence": 1, "origin_process": 2, "origin_sequence": 3}
	got, err := newReader().renewal(pack(t, envelope("Renew", good)))
	want := decoded(renewed, func(e *event) { e.sequence, e.origin = 1, reservations.Origin{Process: 2, Sequence: 3} })
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(event{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, message := range map[string]any{
		"a free":                envelope("Free", good),
		"a reservation":         envelope(adding(dict{}), good),
		"by index":              envelope(3, good),
		"without number":        envelope("Renew", good, dict{"sequence": nil}),
		"of none":               envelope("Renew", good, dict{"origin_sequence": nil}),
		"of process nil":        envelope("Renew", good, dict{"origin_process": nil}),
		"with content":          envelope(dict{"Renew": 5}, good),
		"of a reservation of 0": envelope("Renew", good, dict{"origin_process": 0}),
	} {
		if _, err := newReader().renewal(pack(t, message)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestLeaseRoundsUp proves that no replica thinks a lease shorter than it is.
func TestLeaseRoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]uint64{1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000} {
		if got := toMilliseconds(d); got != want {
			t.Errorf("%v: %d ms, want %d", d, got, want)
		}
	}
}

// TestReservationOfHint proves when tokens count.
func TestReservationOfHint(t *testing.T) {
	for _, tt := range []struct {
		e    event
		want uint64
	}{
		{event{track: true, hinted: true, prefillTokens: 5}, 5},
		{event{track: false, hinted: true, prefillTokens: 5}, 0},
		{event{track: true}, 0},
		{event{track: true, hinted: true}, 0},
	} {
		if b := tt.e.reservation("", reservations.ByOwner); b.PrefillTokens != tt.want || b.TrackPrefill != (tt.want > 0) {
			t.Errorf("%+v books %d, %v", tt.e, b.PrefillTokens, b.TrackPrefill)
		}
	}
}

// TestAnnouncement proves that announcements arrive as they were sent, and which
// are refused.
func TestAnnouncement(t *testing.T) {
	want := announcement{process: math.MaxUint64, url: "http://h:1", sequence: 5, merged: 6, renewals: 7}
	raw := bytes.Clone(newEncoder().announcement(want))
	if got, err := newReader().announcement(raw); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for name, a := range map[string]announcement{
		"process 0": {url: "http://h:1"},
		"long URL":  {process: 1, url: strings.Repeat("x", maxURL+1)},
		"sequence":  {process: 1, sequence: maxSequence + 1},
		"renewals":  {process: 1, renewals: maxSequence + 1},
	} {
		if _, err := newReader().announcement(bytes.Clone(newEncoder().announcement(a))); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	old := pack(t, dict{"process_id": 1, "url": "u", "sequence": 2, "merged": 3}) // knows of no leases
	if got, err := newReader().announcement(old); err != nil || got != (announcement{process: 1, url: "u", sequence: 2, merged: 3}) {
		t.Errorf("without renewals: %+v, %v", got, err)
	}
	for _, raw := range [][]byte{nil, {0x80}, make([]byte, maxAnnouncement+1), raw[:len(raw)-1]} {
		if _, err := newReader().announcement(raw); err == nil {
			t.Errorf("%d bytes: taken", len(raw))
		}
	}
}

// TestReachable proves what becomes of an announced URL.
func TestReachable(t *testing.T) {
	for _, tt := range []struct{ url, peer, want string }{
		{"http://h:1", "tcp://p:2", "http://h:1"},
		{"https://h/base", "tcp://p:2", "https://h/base"},
		{"http://h:1/", "tcp://p:2", "http://h:1"},
		{"http://0.0.0.0:1", "tcp://p:2", "http://p:1"},
		{"http://[::]:1", "tcp://10.0.0.1:2", "http://10.0.0.1:1"},
		{"http://:1", "tcp://[fe80::1]:2", "http://[fe80::1]:1"},
		{"http://[::]", "tcp://[fe80::1]:2", "http://[fe80::1]"},
		{"http://[::ffff:10.0.0.1]:1", "tcp://p:2", "http://10.0.0.1:1"},
		{"http://[0:0::F]:01", "tcp://p:2", "http://[::f]:1"},
		{"http://H.:1", "tcp://p:2", "http://h:1"},
		{"http://0.0.0.0:1", "ipc:///tmp/x", "http://127.0.0.1:1"},
		{"http://0.0.0.0:1", "nonsense", ""},
		{"ftp://h:1", "tcp://p:2", ""},
		{"h:1", "tcp://p:2", ""},
		{"http://u:p@h:1", "tcp://p:2", ""},
		{"http://h:1?x=y", "tcp://p:2", ""},
		{"http://[", "tcp://p:2", ""},
	} {
		speaker, err := EndpointSpeaker(tt.url, tt.peer)
		got := speaker.Base
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s at %s: %q, %v; want %q", tt.url, tt.peer, got, err, tt.want)
		}
	}
}

// FuzzDecode proves that no message makes the decoder panic or allocate more
// than the message justifies, and that what it takes survives a round trip.
func FuzzDecode(f *testing.F) {
	for _, m := range recordings(f) {
		if len(m.FramesHex) > 1 {
			raw, err := hex.DecodeString(m.FramesHex[1])
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
		}
	}
	f.Add(pack(f, list{"m", "t", 16, list{"r", list{7, 1}, map[int]any{0: list{list{4}, true, nil, nil}}, 42, nil}}))
	f.Add(newEncoder().announcement(announcement{process: 1, url: "http://h:1", sequence: 2, merged: 3, renewals: 4}))
	f.Add(pack(f, envelope("Renew", dict{"sequence": 1, "origin_process": 2, "origin_sequence": 3})))
	f.Add(pack(f, envelope(adding(dict{"token_sequence": list{7}}), dict{"sequence": 1, "lease_ms": 1500})))
	f.Add(pack(f, envelope(adding(dict{"token_sequence": list{7}, "prefix": somePrefix(nil)}), dict{"sequence": 1})))
	enc := newEncoder()
	f.Fuzz(func(t *testing.T, payload []byte) {
		r := newReader()
		checkAllocation(t, len(payload), func() {
			_, _ = r.announcement(payload)
			_, _ = r.event(payload)
		})
		decode := r.event
		e, err := decode(payload)
		if err != nil {
			decode = r.renewal
			e, err = decode(payload)
		}
		if err != nil {
			decode = r.reservation
			e, err = decode(payload)
		}
		if err != nil || e.sequence == 0 {
			return
		}
		again, err := decode(enc.encode(&e, e.prefix))
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if diff := cmp.Diff(e, again, cmp.AllowUnexported(event{}), cmpEmpty); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

var cmpEmpty = cmp.Transformer("empty", func(h []uint64) []uint64 {
	if len(h) == 0 {
		return nil
	}
	return h
})

// checkAllocation fails if f allocates more than 32 bytes for each of n, and a
// little. The runtime allocates beside it now and then: one try of three counts.
func checkAllocation(t *testing.T, n int, f func()) {
	t.Helper()
	limit := uint64(n)*32 + 64<<10
	var used uint64
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if used = after.TotalAlloc - before.TotalAlloc; used <= limit {
			return
		}
	}
	t.Errorf("%d bytes allocated for %d", used, n)
}
