package indexer

// Tier is where a worker keeps a cached block.
type Tier uint8

// The tiers in the order in which a prefix is followed through them.
const (
	Device Tier = iota
	Host
	Disk
	External
	// NumTiers counts the tiers.
	NumTiers = 4
)

// String gives the tier's name on the wire (dynamo-kv-router 1.3.1, /dump).
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host_pinned"
	case Disk:
		return "disk"
	case External:
		return "external"
	}
	return "unknown"
}
