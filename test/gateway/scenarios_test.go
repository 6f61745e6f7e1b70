package gateway

import (
	"fmt"
	"testing"
)

// scenarios are what a picker has to get right behind Envoy. Those that are quick and
// tell most are played with -short, too.
var scenarios = []struct {
	name  string
	short bool
	play  func(*testing.T)
}{
	// The messages between Envoy and the picker.
	{"full duplex bodies", true, fullDuplex},
	{"buffered bodies are refused", false, buffered},
	{"parts of responses", false, partsOfResponses},
	{"a large body in small pieces", false, largeBody},
	{"request trailers", true, requestTrailers},
	{"response trailers", false, responseTrailers},
	{"no body", false, noBody},
	{"another path", false, otherPath},
	{"completions", false, textCompletions},
	{"responses", false, responses},

	// Where requests go.
	{"the cached prefix wins", true, cachedPrefix},
	{"equal prompts spread", true, equalPrompts},
	{"priorities", false, priorities},
	{"tenants", true, tenants},
	{"a long salt", false, longSalt},
	{"an adapter", false, adapter},
	{"an unknown model", false, unknownModel},
	{"a subset", true, subset},
	{"an empty subset", false, emptySubset},
	{"headers of the picker", false, ownHeaders},
	{"ranks by header", true, ranksByHeader},
	{"ranks by port", false, ranksByPort},
	{"local ranks by header", false, localRanks},

	// What is booked, and for how long.
	{"a streamed answer", true, streamedAnswer},
	{"an answer in one piece", false, wholeAnswer},
	{"output blocks", false, outputBlocks},
	{"added latency", false, addedLatency},
	{"a client leaves the queue", false, leavesQueue},
	{"a client leaves an answer", true, leavesAnswer},
	{"an engine breaks", false, engineBreaks},
	{"an engine breaks between", false, breaksBetween},
	{"a refused connection", false, refusedConnection},
	{"one request id twice", false, sameRequestID},
	{"usage in pieces", false, usageInPieces},

	// What is refused.
	{"the tokenizer fails", false, tokenizerFails},
	{"the tokenizer refuses", false, tokenizerRefuses},
	{"limits", true, limits},

	// What is traced.
	{"traces", true, traces},
	{"traces of Envoy", true, tracesOfEnvoy},

	// More than one picker, or none.
	{"two replicas", false, twoReplicas},
	{"no picker", false, noPicker},
	{"a picker stops", false, pickerStops},
	{"a picker of two is replaced", false, replaced},
	{"prefill and decode", false, prefillAndDecode},
	{"the rank that prefills", false, prefillRank},
	{"a replica of Dynamo", false, dynamoReplica},
}

func TestScenarios(t *testing.T) {
	for i, s := range scenarios {
		t.Run(fmt.Sprintf("%02d %s", i+1, s.name), func(t *testing.T) {
			if testing.Short() && !s.short {
				t.Skip("not one of the short ones")
			}
			t.Parallel()
			s.play(t)
		})
	}
}
