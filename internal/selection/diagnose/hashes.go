package diagnose

// HashSource is the origin of the hashes of a publisher's blocks.
type HashSource uint8

// The sources.
const (
	HashesNone       HashSource = iota // no blocks yet
	HashesTokens                       // computed here from tokens
	HashesStandard                     // the publisher's, confirmed by blocks known from tokens
	HashesUnverified                   // the publisher's, not confirmed to be the standard's
	HashesOwn                          // the engine's own, different from the standard's
)

var hashSourceNames = [...]string{
	HashesNone: "none", HashesTokens: "tokens", HashesStandard: "standard",
	HashesUnverified: "unverified", HashesOwn: "own",
}

// String gives the source's name on the wire.
func (h HashSource) String() string {
	if int(h) < len(hashSourceNames) {
		return hashSourceNames[h]
	}
	return "unknown"
}
