package httpapi

import "testing"

const promptSeed = `{"model_name":"m","token_ids":[1,2],"block_hashes":[-1],"sequence_hashes":[18446744073709551615],"isl_tokens":16,` +
	`"block_mm_infos":[null,{"mm_objects":[{"mm_hash":1,"offsets":[[0,1]]}]}],"mm_routing_info":{"routing_token_ids":[1]},` +
	`"router_config_override":{"router_temperature":0.5}`

const (
	selectSeed = promptSeed + `,"reservation_id":"r","pinned_worker":{"worker_id":1,"dp_rank":0},"allowed_worker_ids":[1],` +
		`"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":1}},"lease_seconds":0.5,"if_exists":"return"}`
	reserveSeed = promptSeed + `,"reservation_id":"r","worker_id":1,"dp_rank":0,"effective_prefill_tokens":1,"lease_seconds":30,"if_exists":"error"}`
)

func FuzzSelectBody(f *testing.F) {
	fuzzBody(f, newSelectBody(newSelectAndReserveShape(dialect13)), selectSeed)
}

func FuzzSelectBody16(f *testing.F) {
	fuzzBody(f, newSelectBody(newSelectAndReserveShape(dialect16)), selectSeed,
		`{"tenant_id":"t","routing_group":"t","selection_id":null,"reservation_id":"r","advisory":true,"session_id":"s",`+
			`"session_context":{"session_id":"c","parent_session_id":null,"session_final":true,"input_trigger":"other","agent_headers":{"a":["b"]}}}`)
}

func FuzzReserveBody(f *testing.F) {
	fuzzBody(f, newReserveBody(dialect13), reserveSeed)
}

func FuzzReserveBody16(f *testing.F) {
	fuzzBody(f, newReserveBody(dialect16), reserveSeed, `{"routing_group":"a","tenant_id":"b","selection_id":"s","worker_id":null,"track_prefill_tokens":false}`)
}

func FuzzProjectBody(f *testing.F) { fuzzBody(f, newProjectBody(dialect16), promptSeed+"}") }

func FuzzBusyThresholdBody(f *testing.F) {
	fuzzBody(f, newBody(busyShape, nil, nil), `{"model":"m","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":18446744073709551615,`+
		`"active_prefill_tokens_threshold_frac":1.5}`, `{"model":"m","active_decode_blocks_threshold":null}`)
}

const settingsSeed = `{"endpoint":"e","kv_events_endpoints":{"0":"tcp://a:1"},"replay_endpoints":{"1":"x"},"block_size":4,"taints":["a"],` +
	`"topology_domains":{"zone":"a"},"kv_transfer_enforcement":"required","kv_transfer_preferred_weight":0.5,"is_eagle":null`

func FuzzWorkerBody(f *testing.F) {
	fuzzBody(f, newBody(newWorkerShape(dialect16), resetWorkerBody, nil), settingsSeed+`,"worker_id":1,"model_name":"m"}`)
}

func FuzzPatchBody(f *testing.F) { fuzzBody(f, newBody(patchShape, nil, nil), settingsSeed+"}") }

func FuzzOutputBlockBody(f *testing.F) {
	fuzzBody(f, newBody(outputBlockShape, nil, nil), `{"decay_fraction":0.5}`)
}

func FuzzPeerBody(f *testing.F) {
	fuzzBody(f, newBody(peerShape, nil, nil), `{"endpoint":"tcp://a:1"}`)
}
