package policies

// contestant is a rule of the tables.
type contestant struct {
	name  string
	start func(w *world) Rule
}

// rules are the contestants in the order of the tables.
var rules = []contestant{
	{"predicted-ttft", service("predicted-ttft")}, // select-service, the policy predicted-ttft
	{"other-draws", otherDraws},
	{"with-sessions", withSessions},          // its soft sessions
	{"with-groups", withGroups},              // its groups: the sub-agents of one session kept together
	{"dynamo", service("")},                  // Dynamo's default cost, as select-service has it
	{"lmetric", service("lmetric")},          // LMetric, as select-service has it
	{"jsew", startJSEW},                      // Dynamo's dynamo-jsew
	{"ramjet", startRamjet},                  // Dynamo's ramjet
	{"subagent-groups", startSubagentGroups}, // Dynamo's dynamo-subagent-group-affinity
	{"sticky-bounded", startSticky(1.25)},    // Dynamo's sticky-session, mode bounded
	{"hard-sessions", startSticky(0)},        // a session stays where Dynamo's cost has put it
	{"llm-d", startLLMD(15_928)},             // llm-d's default, with its own constants
	{"llm-d-told", startLLMD(prefillRate)},   // llm-d's default that is told the engines' rate
	{"smetric", startSMetric},                // vllm-router's smetric
	{"chwbl", startCHWBL},                    // consistent hashing with bounded loads
	{"preble", startPreble},                  // Preble's exploit and explore, as AIBrix has it
	{"round-robin", startRoundRobin},         // in turn
}
