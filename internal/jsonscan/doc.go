// Package jsonscan reads JSON request bodies strictly and without garbage.
//
// A body of the selection service is nearly all integers: the hashes or tokens
// of a prompt. [Scanner] scans those straight into typed slices that the caller
// reuses, about as fast as memory delivers the text, and reads everything else
// value by value. An [Object] says which members a JSON object may have and
// which Go field each of them fills.
//
// The scanner makes one pass and stops at the first fault in the text. Faults
// come in the two classes that the service's contract distinguishes: text that is
// not JSON ([Syntax]), and JSON that is not what the caller asked for ([Shape]).
//
// Strictness beyond RFC 8259: strings must be valid UTF-8 without lone
// surrogates, and values nest at most [MaxDepth] deep.
package jsonscan
