package openapi

import (
	"fmt"
	"strings"
)

// step is a request with the status that it is answered with.
type step struct {
	method, target, body string
	status               int
}

// names are those of a dialect.
type names struct{ group, booking string }

var dialectNames = map[string]names{
	"1.3": {group: "tenant_id", booking: "reservation_id"},
	"1.6": {group: "routing_group", booking: "selection_id"},
}

// The tours end where they began, so that they can follow each other.
const (
	big    = "18446744073709551615" // the greatest id
	prompt = `"token_ids":[5,6,7,8,9]`
)

// selectionTour asks for everything that a dialect has: every operation, and the
// refusals that can be had without another configuration. The worker with the big
// id has been registered for model m and group g and has the prompt's block.
func selectionTour(dialect, endpoint string) []step {
	n := dialectNames[dialect]
	scope := fmt.Sprintf(`"model_name":"m","%s":"g"`, n.group)
	booking := func(id string) string { return fmt.Sprintf(`%s,%s,"%s":"%s"`, scope, prompt, n.booking, id) }
	explicit := func(id string) string { return booking(id) + `,"worker_id":` + big }
	steps := []step{
		{"POST", "/workers", `{"worker_id":2,"model_name":"m2"}`, 201},
		{"POST", "/workers", `{"worker_id":2,"data_parallel_size":5000}`, 400},
		{"POST", "/workers", `{"worker_id":2,`, 400},
		{"POST", "/workers", `{"worker_id":-2}`, 422},
		{"POST", "/workers", strings.Repeat(" ", 8<<20+1), 413},
		{"GET", "/workers", "", 200},
		{"HEAD", "/workers", "", 200},
		{"GET", "/workers?model_name=m&" + n.group + "=g", "", 200},
		{"GET", "/workers?model_name=m&model_name=m", "", 400},
		{"GET", "/workers?tenant_id=a&routing_group=b", "", 400},
		{"PATCH", "/workers/2", `{"taints":["x"],"replay_endpoints":{"0":"` + endpoint + `"},"kv_transfer_enforcement":"required"}`, 200},
		{"PATCH", "/workers/3", `{}`, 404},
		{"PATCH", "/workers/x", `{}`, 400},
		{"PUT", "/workers", fmt.Sprintf(`{"model_name":"m3","%s":"g","workers":[{"worker_id":4}]}`, n.group), 200},
		{"PUT", "/workers", fmt.Sprintf(`{"model_name":"m3","%s":"g","workers":[{"worker_id":4,"data_parallel_size":5000}]}`, n.group), 400},
		{"PUT", "/workers", fmt.Sprintf(`{"model_name":"m3","%s":"g","workers":[{"worker_id":2}]}`, n.group), 409},
		{"PUT", "/workers", `{"workers":{}}`, 422},
		{"PUT", "/workers", fmt.Sprintf(`{"model_name":"m3","%s":"g","workers":[]}`, n.group), 200},
		{"POST", "/workers/3/drain", "", 404},
		{"POST", "/workers/2/drain", `{"deadline_seconds":-1}`, 400},
		{"POST", "/workers/2/drain", `{"deadline_seconds":[]}`, 422},
		{"DELETE", "/workers/2/drain", "", 200},
		{"DELETE", "/workers/3/drain", "", 404},
		{"DELETE", "/workers/2", "", 200},
		{"DELETE", "/workers/2", "", 404},
		{"GET", "/health", "", 200},
		{"GET", "/ready", "", 200},

		{"POST", "/select", "{" + scope + "," + prompt + "}", 200},
		{"POST", "/select", "{" + scope + "," + prompt + `,"selection_id":"s"}`, 200},
		{"POST", "/select", "{" + scope + "}", 400},
		{"POST", "/select", "{" + scope + "," + prompt + `,"pinned_worker":[]}`, 422},
		{"POST", "/select", "{" + prompt + "}", 503},
		{"POST", "/select_batch", `{"requests":[{"select":{` + scope + "," + prompt + `}},{"select":{}}]}`, 200},
		{"POST", "/select_batch", `{"requests":[{"other":{}}]}`, 422},
		{"POST", "/select_and_reserve", "{" + scope + "," + prompt + "}", 200},
		{"POST", "/select_and_reserve", "{" + booking("r1") + `,"lease_seconds":60.5}`, 200},
		{"POST", "/select_and_reserve", "{" + booking("r1") + "}", 409},
		{"POST", "/select_and_reserve", "{" + booking("r1") + `,"if_exists":"return"}`, 200},
		{"POST", "/select_and_reserve", "{" + booking("r2") + `,"lease_seconds":0}`, 400},
		{"POST", "/select_pair", "{" + booking("pair") + `,"lease_seconds":60}`, 200},
		{"POST", "/select_pair", "{" + booking("pair") + "}", 409},
		{"DELETE", "/reservations/pair", "", 200},
		{"POST", "/reservations", "{" + explicit("r3") + `,"lease_seconds":60}`, 201},
		{"PUT", "/workers/" + big + "/load", `{"ranks":{"0":{"running":1,"kv_tokens_used":16}}}`, 200},
		{"PUT", "/workers/" + big + "/load", `{"ranks":{"9":{}}}`, 404},
		{"PUT", "/workers/" + big + "/load", `{"ranks":{"0":{"running":-1}}}`, 422},
		{"POST", "/workers/" + big + "/drain", "", 200}, // it stays: something is booked there
		{"POST", "/workers/" + big + "/drain", `{"deadline_seconds":600.5}`, 200},
		{"DELETE", "/workers/" + big + "/drain", "", 200},
		{"POST", "/reservations", "{" + explicit("r3") + `,"if_exists":"return"}`, 200},
		{"POST", "/reservations", "{" + explicit("r3") + "}", 409},
		{"POST", "/reservations", "{" + explicit("r4") + "}", 201},
		{"POST", "/reservations", "{" + explicit("r5") + `,"dp_rank":9}`, 404},
		{"POST", "/reservations", "{}", 422},
		{"POST", "/reservations/r3/renew", "", 200},
		{"POST", "/reservations/r4/renew", "", 409},
		{"POST", "/reservations/none/renew", "", 404},
		{"POST", "/reservations/r3/output_block", `{"decay_fraction":0.5}`, 200},
		{"POST", "/reservations/r3/output_block", `{"decay_fraction":2}`, 400},
		{"POST", "/reservations/none/output_block", `{}`, 404},
		{"GET", "/loads", "", 200},
		{"PUT", "/policies", `{"worker_selection":{"aggregated":"p","instances":[{"name":"p","type":"lmetric"}]}}`, 200},
		{"PUT", "/policies", `{"worker_selection":{"aggregated":"p"}}`, 400},
		{"PUT", "/policies", `{}`, 422},
		{"GET", "/policies", "", 200},
		{"DELETE", "/policies", "", 200},
		{"POST", "/explain", "{" + scope + "," + prompt + "}", 200},
		{"POST", "/explain", "{" + scope + "," + prompt + `,"allowed_worker_ids":[]}`, 200},
		{"POST", "/explain", "{" + prompt + "}", 503},
		{"POST", "/tokenize", "{" + scope + `,"request":{"prompt":"a b"}}`, 200},
		{"POST", "/tokenize", "{" + scope + `,"request":{"messages":[{"role":"user","content":"a b"}],"lora_path":"l","cache_salt":"s"}}`, 200},
		{"POST", "/tokenize", "{" + scope + `,"request":{"prompt":["a","b"]}}`, 400},
		{"POST", "/tokenize", `{"request":{"prompt":"a","model":"none"}}`, 404},
		{"POST", "/tokenize", "{" + scope + `,"request":{"prompt":"broken"}}`, 502},
		{"POST", "/tokenize", "{" + scope + `,"request":"a"}`, 422},
		{"POST", "/select", "{" + scope + "," + prompt + `,"explain":true}`, 200},
		{"POST", "/select_and_reserve", "{" + booking("r6") + `,"explain":true}`, 200},
		{"DELETE", "/reservations/r6", "", 200},
		{"GET", "/decisions", "", 200},
		{"GET", "/sessions", "", 200},
		{"GET", "/fairness?by=program", "", 200},
		{"GET", "/fleet", "", 200},
		{"GET", "/history", "", 200},
		{"GET", "/index/prefixes", "", 200},
		{"GET", "/doctor", "", 200},
		{"GET", "/replicas", "", 200},
		{"POST", "/potential_loads", "{" + scope + "," + prompt + "}", 200},
		{"POST", "/potential_loads", "{}", 503},
		{"POST", "/overlap_scores", "{" + scope + "," + prompt + "}", 200},
		{"POST", "/diagnose", "{" + scope + "," + prompt + "}", 200},
		{"POST", "/diagnose", "{" + scope + `,"token_ids":[9,9,9,9]}`, 200},
		{"GET", "/dump", "", 200},

		{"POST", "/busy_threshold", `{"model":"m","active_prefill_tokens_threshold":0,"active_decode_blocks_threshold":0.5}`, 200},
		{"POST", "/busy_threshold", `{"model":"m","active_decode_blocks_threshold":2}`, 400},
		{"POST", "/busy_threshold", `{"model":"none","active_decode_blocks_threshold":1}`, 404},
		{"GET", "/busy_threshold", "", 200},
		{"POST", "/select", "{" + scope + "," + prompt + "}", 503},
		{"DELETE", "/busy_threshold?model=m", "", 200},
		{"DELETE", "/busy_threshold", "", 400},
		{"DELETE", "/busy_threshold?model=none", "", 404},

		{"POST", "/reservations/r3/prefill_complete", "", 200},
		{"POST", "/reservations/none/prefill_complete", "", 404},
		{"DELETE", "/reservations/r1", "", 200},
		{"DELETE", "/reservations/r3", "", 200},
		{"DELETE", "/reservations/r4", "", 200},
		{"DELETE", "/reservations/r1", "", 404},
		{"GET", "/nowhere", "", 404},
		{"DELETE", "/health", "", 405},
	}
	if dialect == "1.6" {
		steps = append(steps,
			step{"POST", "/select", "{" + scope + "," + prompt + `,"advisory":true,"session_id":"s"}`, 200},
			step{"POST", "/select", "{" + scope + "," + prompt + `,"selection_id":"kept"}`, 200},
			step{"POST", "/reservations", "{" + scope + `,"selection_id":"kept"}`, 201},
			step{"POST", "/reservations", "{" + scope + `,"selection_id":"never"}`, 404},
			step{"DELETE", "/reservations/kept", "", 200})
	}
	steps = append(steps, replicaTour()...)
	for _, s := range slotsTour(n.group) {
		s.target = "/slots" + s.target
		steps = append(steps, s)
	}
	return steps
}

func replicaTour() []step {
	const peer = `{"endpoint":"tcp://127.0.0.1:1"}`
	return []step{
		{"POST", "/replica_sync/register_peer", peer, 201},
		{"POST", "/replica_sync/register_peer", peer, 200},
		{"POST", "/replica_sync/register_peer", `{"endpoint":"x"}`, 400},
		{"GET", "/replica_sync/peers", "", 200},
		{"POST", "/replica_sync/deregister_peer", peer, 200},
		{"POST", "/replica_sync/deregister_peer", peer, 404},
		{"GET", "/replica_sync/snapshot", "", 200},
		{"GET", "/replica_sync/snapshot?limit=0", "", 400},
	}
}

// slotsTour is for the slot tracker's own listener.
func slotsTour(group string) []step {
	scope := fmt.Sprintf(`"model_name":"s","%s":"g"`, group)
	worker := "{" + scope + `,"worker_id":` + big + `,"block_size":4,"dp_start":0,"dp_size":2}`
	request := "{" + scope + `,"request_id":"q"}`
	add := "{" + scope + `,"request_id":"q","worker_id":` + big + `,"dp_rank":1,"sequence_hashes":[-1,18446744073709551615,7],"new_isl_tokens":9}`
	const peer = `{"url":"tcp://127.0.0.1:1"}`
	return []step{
		{"POST", "/register", worker, 201},
		{"POST", "/register", worker, 409},
		{"POST", "/register", "{", 400},
		{"POST", "/register", "{}", 422},
		{"POST", "/register", strings.Repeat(" ", 2<<20+1), 413},
		{"GET", "/workers", "", 200},
		{"POST", "/add", add, 201},
		{"POST", "/add", add, 409},
		{"POST", "/add", strings.Replace(add, `"s"`, `"none"`, 1), 404},
		{"POST", "/prefill_complete", request, 200},
		{"POST", "/prefill_complete", "{" + scope + `,"request_id":"none"}`, 404},
		{"GET", "/loads", "", 200},
		{"POST", "/potential_loads", "{" + scope + `,"sequence_hashes":[7]}`, 200},
		{"POST", "/free", request, 200},
		{"GET", "/health", "", 200},
		{"GET", "/peers", "", 200},
		{"POST", "/register_peer", peer, 201},
		{"POST", "/register_peer", peer, 200},
		{"POST", "/deregister_peer", peer, 200},
		{"POST", "/deregister_peer", peer, 404},
		{"POST", "/unregister", worker, 200},
		{"POST", "/unregister", worker, 404},
		{"GET", "/nowhere", "", 404},
	}
}

// conductorTour is for the Conductor's own listener.
func conductorTour(endpoint string) []step {
	instance := fmt.Sprintf(`{"endpoint":"%s","type":"vLLM","modelname":"m","instance_id":"i","block_size":4,"dp_rank":0,"replay_endpoint":"tcp://127.0.0.1:1"}`, endpoint)
	question := func(member string) string { return `{"model":"m","block_size":4,` + member + "}" }
	return []step{
		{"POST", "/register", instance, 200},
		{"POST", "/register", strings.Replace(instance, "127.0.0.1:1", "127.0.0.1:2", 1), 409},
		{"POST", "/register", "{}", 400},
		{"POST", "/register", strings.Repeat(" ", 8<<20+1), 413},
		{"POST", "/query", question(prompt), 200},
		{"POST", "/query", question(`"token_ids":-1`), 400},
		{"POST", "/query_by_hash", question(`"seq_hashes":[-1,18446744073709551615]`), 200},
		{"POST", "/diagnose", question(prompt), 200},
		{"POST", "/diagnose", question(`"seq_hashes":[1]`), 200},
		{"GET", "/services", "", 200},
		{"GET", "/health", "", 200},
		{"POST", "/unregister", `{"instance_id":"i"}`, 200},
		{"POST", "/unregister", `{"instance_id":"i"}`, 404},
		{"GET", "/nowhere", "", 404},
		{"GET", "/query", "", 405},
	}
}
