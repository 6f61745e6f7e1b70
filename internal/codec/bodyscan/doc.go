// Package bodyscan parses request bodies strictly and without garbage: JSON text, and the
// same values in msgpack.
//
// A body of the selection service is nearly all integers: the hashes or tokens
// of a prompt. [Scanner] scans those straight into typed slices that the caller
// reuses, about as fast as memory delivers the text, and reads everything else
// value by value. An [Object] says which members an object may have and which Go
// field each of them fills; it does not know the [Format].
//
// The scanner makes one pass and stops at the first fault in the text. Faults
// come in the two classes that the service's contract distinguishes: text that is
// not of its format ([Syntax]), and values that are not what the caller asked for
// ([Shape]).
//
// Strictness beyond RFC 8259: strings must be valid UTF-8 without lone surrogates, and values
// nest at most [MaxDepth] deep. The same holds for msgpack
// (https://github.com/msgpack/msgpack/blob/master/spec.md). There, names of members are
// strings, or integers that stand for their decimal digits; NaN and infinities are faults;
// extensions can only be skipped. An array of integers may also be a byte string of
// little-endian words: 4 bytes each for 32-bit integers, else 8.
package bodyscan
