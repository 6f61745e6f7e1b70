package gateway

// steering are the headers by which a client would choose for itself what is behind the gateway: the
// engine that prefills, encodes or has the cache, the worker or rank of a frontend, the model of a pool.
// A sidecar sends prompts to whatever host they name, and a frontend takes the choice as it is. The
// gateway removes them from every request, and those that it obeys itself. Headers of placed are not in the list: those that a placement
// does not set are removed too. Headers that say who asks, in which session and how urgently are left:
// x-dynamo-session-id, x-request-id, x-smg-routing-key, x-llm-d-inference-fairness-id, x-llm-d-slo-tpot-ms.
var steering = []string{
	// The endpoint picker protocol and what its pickers for conformance tests obey.
	fairnessAlias, "x-gateway-inference-objective", "x-gateway-model-name-rewrite",
	SubsetHeader, ServedHeader, "test-epp-endpoint-selection",
	// llm-d's sidecar, under its former and its present names (llm-d-router, pkg/common/routing).
	"x-prefiller-url", "x-encoder-hosts-ports", "x-data-parallel-host-port",
	"x-llm-d-prefiller-host-port", "x-llm-d-encoder-hosts-ports", "x-llm-d-kv-cache-source-host-port",
	"x-llm-d-model-name-rewrite", "x-llm-d-dp-winning-ranks",
	// Dynamo's frontend, under its former and its present names (lib/llm, nvext.rs).
	"x-worker-instance-id", "x-prefill-instance-id", "x-dp-rank", "x-prefill-dp-rank", "x-enable-local-updates",
	"x-dynamo-worker-instance-id", "x-dynamo-prefill-instance-id", "x-dynamo-dp-rank", "x-dynamo-prefill-dp-rank",
	"x-dynamo-routing-mode",
	// SGLang's model gateway and AIBrix.
	"x-smg-target-worker", "target-pod",
	// What the request wants of its times.
	ttftHeader, ttftAlias, deadlineHeader, onMissHeader,
	// What has been reserved for the request.
	reservationHeader, pinHeader, profileHeader,
}
