// Package pauses learns whether a session sends another turn after one has ended, and how long it pauses until then.
//
// A pause is log-normal: the natural logarithm of its seconds has the mean Mu and the deviation Sigma. Programs that
// call tools, their sub-agents and people who chat pause differently, so each [Class] of a scope is learned on its own. The
// priors and the rate at which newer pauses replace older ones are those of llm-d's prediction of returns.
//
// A session that has been idle for a while has not necessarily ended, so the share of sessions that come back must not be
// read from those alone that have. Turns are counted by the time at which they ended. Of n turns that ended a time a ago,
// and of which the share p is followed by another one, n·p·G(a) have been followed by now, where G is the distribution of
// pauses. The learned share is the sum of what was seen over the sum of n·G(a): the estimate of the greatest likelihood.
//
// How many sessions those of a scope start, of those that start any, is learned beside it.
//
// The package reads no clock: callers pass the times.
package pauses
