package httpapi

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/internal/codec/bodyscan"
)

const promptSeed = `{"model_name":"m","token_ids":[1,2],"block_hashes":[-1],"sequence_hashes":[18446744073709551615],"isl_tokens":16,` +
	`"block_mm_infos":[null,{"mm_objects":[{"mm_hash":1,"offsets":[[0,1]]}]}],"mm_routing_info":{"routing_token_ids":[1]},` +
	`"router_config_override":{"router_temperature":0.5}`

const (
	selectSeed = promptSeed + `,"reservation_id":"r","pinned_worker":{"worker_id":1,"dp_rank":0},"allowed_worker_ids":[1],` +
		`"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":1}},"lease_seconds":0.5,"if_exists":"return"}`
	reserveSeed  = promptSeed + `,"reservation_id":"r","worker_id":1,"dp_rank":0,"effective_prefill_tokens":1,"lease_seconds":30,"if_exists":"error"}`
	settingsSeed = `{"endpoint":"e","kv_events_endpoints":{"0":"tcp://a:1"},"replay_endpoints":{"1":"x"},"block_size":4,"taints":["a"],` +
		`"topology_domains":{"zone":"a"},"kv_transfer_enforcement":"required","kv_transfer_preferred_weight":0.5,"is_eagle":null`
)

// fuzzedBodies are the request bodies whose reading is fuzzed, with good texts.
// FuzzBodies names one by its index: new ones go to the end.
var fuzzedBodies = []struct {
	check func(t *testing.T, format bodyscan.Format, text []byte)
	seeds []string
}{
	{checkBody(newSelectBody(newSelectAndReserveShape(dialect13))), []string{selectSeed}},
	{checkBody(newSelectBody(newSelectAndReserveShape(dialect16))), []string{
		selectSeed,
		`{"tenant_id":"t","routing_group":"t","selection_id":null,"reservation_id":"r","advisory":true,"session_id":"s",` +
			`"session_context":{"session_id":"c","parent_session_id":null,"session_final":true,"input_trigger":"other","agent_headers":{"a":["b"]}}}`,
	}},
	{checkBody(newReserveBody(dialect13)), []string{reserveSeed}},
	{checkBody(newReserveBody(dialect16)), []string{
		reserveSeed, `{"routing_group":"a","tenant_id":"b","selection_id":"s","worker_id":null,"track_prefill_tokens":false}`,
	}},
	{checkBody(newProjectBody(dialect16)), []string{promptSeed + "}"}},
	{checkBody(newBody(busyShape, nil, nil)), []string{
		`{"model":"m","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":18446744073709551615,` +
			`"active_prefill_tokens_threshold_frac":1.5}`,
		`{"model":"m","active_decode_blocks_threshold":null}`,
	}},
	{checkBody(newBody(newWorkerShape(dialect16), resetWorkerBody, nil)), []string{settingsSeed + `,"worker_id":1,"model_name":"m"}`}},
	{checkBody(newBody(patchShape, nil, nil)), []string{settingsSeed + "}"}},
	{checkBody(newBody(outputBlockShape, nil, nil)), []string{`{"decay_fraction":0.5}`}},
	{checkBody(newBody(peerShape, nil, nil)), []string{`{"endpoint":"tcp://a:1"}`}},
	{checkBody(newSlotsBody(newSlotsAddShape(dialect16), resetSlotsBooking, nil, nil)), []string{
		`{"model_name":"m","tenant_id":"t","request_id":"r","worker_id":7,"dp_rank":1,"sequence_hashes":[101,-22],"new_isl_tokens":48}`,
	}},
	{checkBody(newSlotsBody(newSlotsRegisterShape(dialect16), resetSlotsWorker, nil, nil)), []string{
		`{"worker_id":1,"model_name":"a","tenant_id":"t","block_size":16,"dp_start":0,"dp_size":1}`,
	}},
	{checkBody(newSlotsBody(newSlotsProjectShape(dialect16), resetSlotsProjection, slotsProjectionSize, nil)), []string{
		`{"model_name":"m","tenant_id":"t","sequence_hashes":[1,-1],"new_isl_tokens":48}`,
	}},
	{checkBody(newQueryBody(conductorDiagnoseShape)), conductorQuestionSeeds()},
	{checkBody(newDiagnoseBody(dialect16)), []string{
		`{"model_name":"m","tenant_id":"t","token_ids":[1],"block_hashes":[-1],"lora_name":"l","cache_salt":"s","max_blocks":7}`,
	}},
}

func conductorQuestionSeeds() (texts []string) {
	for _, seed := range conductorSeeds[2:] {
		texts = append(texts, seed.body)
	}
	return texts
}

// FuzzBodies reads any text as the body of any route, in JSON and, transcoded, in
// msgpack.
func FuzzBodies(f *testing.F) {
	for i, b := range fuzzedBodies {
		for _, seed := range append(b.seeds, ``, `{}`, `[]`, `{"model_name":"m"`) {
			f.Add(uint8(i), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		fuzzedBodies[int(which)%len(fuzzedBodies)].check(t, bodyscan.JSON, text)
	})
}

// FuzzMsgpackBodies reads any bytes as the msgpack body of any route.
func FuzzMsgpackBodies(f *testing.F) {
	for i, b := range fuzzedBodies {
		for _, seed := range append(b.seeds, `{}`, `[]`) {
			f.Add(uint8(i), bodyscan.AppendMsgpack(nil, []byte(seed)))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		fuzzedBodies[int(which)%len(fuzzedBodies)].check(t, bodyscan.Msgpack, text)
	})
}

// checkBody checks that, whatever comes, decoding does not panic, a fault is of a
// known class, memory stays in proportion to the text, JSON is the same request, or
// fault, in msgpack, and the scratch is as good as new afterwards.
func checkBody[T any](b *body[T]) func(t *testing.T, format bodyscan.Format, text []byte) {
	return func(t *testing.T, format bodyscan.Format, text []byte) {
		x := b.pool.New().(*scratch[T])
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := b.shape.Decode(&x.scan, format, text, &x.req)
		fault, ok := errors.AsType[*bodyscan.Error](err)
		if err != nil && (!ok || fault.Class > bodyscan.Shape || fault.Line < 1 || fault.Column < 1) {
			t.Fatalf("%q: %#v", text, err)
		}
		runtime.ReadMemStats(&after)
		if used, limit := after.TotalAlloc-before.TotalAlloc, uint64(64<<10+128*len(text)); used > limit {
			t.Fatalf("%d bytes allocated for a body of %d", used, len(text))
		}
		if format == bodyscan.JSON {
			b.checkTranscoded(t, text, x.req, fault)
		}
		b.release(x)
		if err := b.shape.Decode(&x.scan, bodyscan.JSON, []byte(`{}`), &x.req); err == nil {
			fresh := b.pool.New().(*scratch[T])
			if diff := cmp.Diff(fresh.req, x.req, cmpopts.EquateEmpty(), exportAll); diff != "" {
				t.Fatalf("%q left something behind:\n%s", text, diff)
			}
		}
	}
}

// checkTranscoded checks that JSON text, if it is well formed, is in msgpack the same
// request, or has the same fault. Integers that no 64 bits hold are floats there.
func (b *body[T]) checkTranscoded(t *testing.T, text []byte, want T, fault *bodyscan.Error) {
	var s bodyscan.Scanner
	s.Reset(bodyscan.JSON, text)
	if s.Skip(); s.End() != nil {
		return
	}
	x := b.pool.New().(*scratch[T])
	err := b.shape.Decode(&x.scan, bodyscan.Msgpack, bodyscan.AppendMsgpack(nil, text), &x.req)
	got, _ := errors.AsType[*bodyscan.Error](err)
	outside := fault != nil && (strings.Contains(fault.Reason, "out of range") || strings.Contains(fault.Reason, "fraction"))
	switch {
	case (got == nil) != (fault == nil):
		t.Fatalf("%q: %v, from JSON %v", text, got, fault)
	case got == nil:
		if diff := cmp.Diff(want, x.req, cmpopts.EquateEmpty(), exportAll); diff != "" {
			t.Fatalf("%q (-JSON +msgpack):\n%s", text, diff)
		}
	case !outside && !strings.Contains(got.Reason, "fraction") &&
		(got.Class != fault.Class || got.Path != fault.Path || got.Field != fault.Field || got.Reason != fault.Reason || got.Limit != fault.Limit):
		t.Fatalf("%q: %v, from JSON %v", text, got, fault)
	}
}
