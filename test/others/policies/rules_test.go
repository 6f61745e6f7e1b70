package policies

// contestant is a rule of the tables.
type contestant struct {
	name, about string
	start       func(w *world) Rule
}

// rules are the contestants in the order of the tables.
var rules = []contestant{
	{"predicted-ttft", "select-service, the policy predicted-ttft", service("predicted-ttft")},
	{"dynamo", "Dynamo's default cost, as select-service has it", service("")},
	{"lmetric", "LMetric, as select-service has it", service("lmetric")},
	{"jsew", "Dynamo's dynamo-jsew", startJSEW},
	{"ramjet", "Dynamo's ramjet", startRamjet},
	{"subagent-groups", "Dynamo's dynamo-subagent-group-affinity", startSubagentGroups},
	{"sticky-bounded", "Dynamo's sticky-session, mode bounded", startSticky(1.25)},
	{"hard-sessions", "a session stays where Dynamo's cost has put it", startSticky(0)},
	{"llm-d", "llm-d's default, with its own constants", startLLMD(15_928)},
	{"llm-d, told", "llm-d's default that is told the engines' rate", startLLMD(prefillRate)},
	{"smetric", "vllm-router's smetric", startSMetric},
	{"chwbl", "consistent hashing with bounded loads", startCHWBL},
	{"preble", "Preble's exploit and explore, as AIBrix has it", startPreble},
	{"round-robin", "in turn", startRoundRobin},
}
