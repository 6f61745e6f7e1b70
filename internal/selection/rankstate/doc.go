// Package rankstate judges what a rank does for new requests, and why. Every reader of a rank's state,
// such as the list of ranks, the doctor, explanations and metrics, gives the facts that it has to this
// judge and shows the Verdict.
package rankstate
