package zmqsock

// LookupsAtOnce is how many lookups run at a time.
const LookupsAtOnce = lookupsAtOnce

// NewWithLookup returns a hub that looks host names up with lookup.
func NewWithLookup(opt Options, lookup lookupFunc) *Hub { return newHub(opt, lookup) }

// LookupVia returns the lookup of hubs, with name servers dialled by dial.
func LookupVia(dial dialFunc) lookupFunc { return lookupVia(dial) }

// GatherFew makes messages of Sample gather though there are few connections.
func (h *Hub) GatherFew() { h.gatherer.few = true }

// Gathering returns the number of connections whose messages gather.
func (h *Hub) Gathering() int {
	h.gatherer.mu.Lock()
	defer h.gatherer.mu.Unlock()
	return h.gatherer.size
}
