// Package overload decides when a worker carries so much that it gets no more
// requests. Everything that it knows is passed to it: it keeps the limits of
// every model, and no load.
//
// A rank is overloaded when it exceeds one of the limits that are set, by
// itself: the request that is to be placed is not added first. All comparisons
// are strict, so a rank that carries exactly what a limit allows takes one more
// request. What is not known is not judged. A worker is overloaded when all its
// ranks are; the caller, who knows them, finds that out.
//
// The rules are those of the Dynamo frontend's request rejection.
package overload
