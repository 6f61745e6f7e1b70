package httpapi

import "testing"

const promptSeed = `{"model_name":"m","token_ids":[1,2],"block_hashes":[-1],"sequence_hashes":[18446744073709551615],"isl_tokens":16,` +
	`"block_mm_infos":[null,{"mm_objects":[{"mm_hash":1,"offsets":[[0,1]]}]}],"mm_routing_info":{"routing_token_ids":[1]},` +
	`"router_config_override":{"router_temperature":0.5}`

func FuzzSelectBody(f *testing.F) {
	fuzzBody(f, newSelectBody(selectAndReserveShape), promptSeed+`,"reservation_id":"r","pinned_worker":{"worker_id":1,"dp_rank":0},`+
		`"allowed_worker_ids":[1],"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":1}}}`)
}

func FuzzReserveBody(f *testing.F) {
	fuzzBody(f, newReserveBody(), promptSeed+`,"reservation_id":"r","worker_id":1,"dp_rank":0,"effective_prefill_tokens":1}`)
}

func FuzzProjectBody(f *testing.F) { fuzzBody(f, newProjectBody(), promptSeed+"}") }

func FuzzBusyThresholdBody(f *testing.F) {
	fuzzBody(f, newBody(busyShape, nil, nil), `{"model":"m","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":18446744073709551615,`+
		`"active_prefill_tokens_threshold_frac":1.5}`, `{"model":"m","active_decode_blocks_threshold":null}`)
}

const settingsSeed = `{"endpoint":"e","kv_events_endpoints":{"0":"tcp://a:1"},"replay_endpoints":{"1":"x"},"block_size":4,"taints":["a"],` +
	`"topology_domains":{"zone":"a"},"kv_transfer_enforcement":"required","kv_transfer_preferred_weight":0.5,"is_eagle":null`

func FuzzWorkerBody(f *testing.F) {
	fuzzBody(f, newBody(workerShape, resetWorkerBody, nil), settingsSeed+`,"worker_id":1,"model_name":"m"}`)
}

func FuzzPatchBody(f *testing.F) { fuzzBody(f, newBody(patchShape, nil, nil), settingsSeed+"}") }

func FuzzOutputBlockBody(f *testing.F) {
	fuzzBody(f, newBody(outputBlockShape, nil, nil), `{"decay_fraction":0.5}`)
}

func FuzzPeerBody(f *testing.F) {
	fuzzBody(f, newBody(peerShape, nil, nil), `{"endpoint":"tcp://a:1"}`)
}
