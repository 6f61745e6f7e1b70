package zmqsock

// LookupsAtOnce is how many lookups run at a time.
const LookupsAtOnce = lookupsAtOnce

// NewWithLookup returns a hub that looks host names up with lookup.
func NewWithLookup(opt Options, lookup lookupFunc) *Hub { return newHub(opt, lookup) }

// LookupVia returns the lookup of hubs, with name servers dialled by dial.
func LookupVia(dial dialFunc) lookupFunc { return lookupVia(dial) }
