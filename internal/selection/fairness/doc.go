// Package fairness counts the seconds of engines that the requests of tenants, and of their programs, have taken lately.
// A program is what a client calls so: an agent with all its sub-agents, or a conversation.
//
// A request is charged what it is predicted to take when it is placed. When its prefill ends, and when it ends, that is
// replaced by what was observed: its part of the time in which its engine prefilled, and its share of the time in which the
// engine decoded for several requests. So a request whose prompt was cached costs little, and what all requests are charged is
// the time of the engine.
//
// It is pure data without a clock. Times are in seconds since a start that the owner chooses; they may jump.
package fairness
