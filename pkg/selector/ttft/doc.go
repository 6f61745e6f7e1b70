// Package ttft predicts the time to first token of a request on a rank, and what the
// request costs there: the time that it waits, its own prefill, and the delay that it
// causes to others. It is the model of the policy predicted-ttft.
//
// A prefill of u tokens to compute, of a prompt of L tokens, takes
//
//	x = m · (Base + PerToken·u + PerContext·u·(L−u/2))
//
// seconds. The coefficients are of the fleet ([Parameters]), m is of the rank
// ([Queue].Speed). Both are learned from completed prefills ([Learner]); the guard rails
// ([Rail]) limit the harm where callers do not report completed prefills in time.
//
// The package reads no clock: times are seconds, or durations since a start that the
// caller chooses.
package ttft
