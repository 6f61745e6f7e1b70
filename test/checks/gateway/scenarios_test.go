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
	envoy bool // it is about Envoy, and has no meaning without it
}{
	// The messages between Envoy and the picker.
	{"full duplex bodies", true, fullDuplex, true},
	{"buffered bodies are refused", false, buffered, false},
	{"parts of responses", false, partsOfResponses, false},
	{"answers by a second filter", true, observedAnswers, true},
	{"a large body in small pieces", false, largeBody, false},
	{"request trailers", true, requestTrailers, false},
	{"response trailers", false, responseTrailers, false},
	{"no body", false, noBody, true},
	{"another path", false, otherPath, false},
	{"completions", false, textCompletions, false},
	{"responses", false, responses, false},

	// Where requests go.
	{"the cached prefix wins", true, cachedPrefix, false},
	{"equal prompts spread", true, equalPrompts, false},
	{"priorities", false, priorities, false},
	{"tenants", true, tenants, false},
	{"a long salt", false, longSalt, false},
	{"an adapter", false, adapter, false},
	{"an unknown model", false, unknownModel, false},
	{"a subset", true, subset, false},
	{"an empty subset", false, emptySubset, false},
	{"headers of the picker", false, ownHeaders, true},
	{"ranks by header", true, ranksByHeader, false},
	{"ranks by port", false, ranksByPort, false},
	{"local ranks by header", false, localRanks, false},

	// What is booked, and for how long.
	{"a streamed answer", true, streamedAnswer, false},
	{"an answer in one piece", false, wholeAnswer, false},
	{"output blocks", false, outputBlocks, false},
	{"added latency", false, addedLatency, false},
	{"a client leaves the queue", false, leavesQueue, false},
	{"a client leaves an answer", true, leavesAnswer, false},
	{"an engine breaks", false, engineBreaks, false},
	{"an engine breaks between", false, breaksBetween, false},
	{"a refused connection", false, refusedConnection, false},
	{"one request id twice", false, sameRequestID, false},
	{"usage in pieces", false, usageInPieces, false},

	// What is refused.
	{"the tokenizer fails", false, tokenizerFails, false},
	{"the tokenizer refuses", false, tokenizerRefuses, false},
	{"limits", true, limits, false},
	{"targets", true, targets, false},

	// What is traced.
	{"traces", true, traces, false},
	{"traces of Envoy", true, tracesOfEnvoy, false},

	// More than one picker, or none.
	{"two replicas", false, twoReplicas, false},
	{"a place that the other replica has reserved", false, placeElsewhere, true},
	{"no picker", false, noPicker, true},
	{"a picker stops", false, pickerStops, true},
	{"a picker of two is replaced", false, replaced, false},
	{"prefill and decode", false, prefillAndDecode, false},
	{"the rank that prefills", false, prefillRank, false},
	{"a peer with the cache", false, peerWithCache, false},
	{"a peer with the cache, for a pair", false, peerForPair, false},
	{"a replica of Dynamo", false, dynamoReplica, false},

	// Whose requests they are.
	{"agents", true, agentsClients, true},
}

func TestScenarios(t *testing.T) { playAll(t, false) }

// TestProxyScenarios plays those that are not about Envoy through the proxy.
func TestProxyScenarios(t *testing.T) { playAll(t, true) }

func playAll(t *testing.T, proxied bool) {
	for i, s := range scenarios {
		t.Run(fmt.Sprintf("%02d %s", i+1, s.name), func(t *testing.T) {
			if testing.Short() && !s.short {
				t.Skip("not one of the short ones")
			}
			if proxied && s.envoy {
				t.Skip("it is about Envoy")
			}
			t.Parallel()
			s.play(t)
		})
	}
}
