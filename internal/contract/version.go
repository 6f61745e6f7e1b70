// Package contract has what every layer says in the words of the served
// contracts: their versions, and errors with their kinds and texts.
package contract

// Version is a version of the selection service's contract. It decides how the
// service behaves as a whole; single requests choose their dialect by the path.
type Version uint8

// The contracts of dynamo-kv-router 1.3.1 and 1.6.1, with the decisions of this
// project.
const (
	V13 Version = iota
	V16
)

// String returns the version as flags and paths name it.
func (c Version) String() string {
	if c == V16 {
		return "1.6"
	}
	return "1.3"
}
