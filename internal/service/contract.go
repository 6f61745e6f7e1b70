package service

// Contract is a version of the selection service's contract. It decides how the
// service behaves as a whole; single requests choose their dialect by the path.
type Contract uint8

// The contracts of dynamo-kv-router 1.3.1 and 1.6.1, with the decisions of this
// project.
const (
	Contract13 Contract = iota
	Contract16
)

// String returns the version as flags and paths name it.
func (c Contract) String() string {
	if c == Contract16 {
		return "1.6"
	}
	return "1.3"
}
