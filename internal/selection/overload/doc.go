// Package overload decides when a worker has so much load that it gets no more requests. It
// keeps the limits of every model, but no load: all loads are passed to it.
//
// A rank is overloaded when its present load, without the request to be placed, exceeds one of
// the limits that are set. Comparisons are strict, so a rank with exactly the allowed load
// accepts one more request. A limit that depends on an unknown capacity is not checked. A
// worker is overloaded when all its ranks are, which the caller determines.
//
// The rules are those of the Dynamo frontend's request rejection.
package overload
