package clientnet

import "net/netip"

// Of returns the client's network: an IPv4 address, whether mapped into IPv6 or not, or the
// /64 network of an IPv6 address, since a host may use all of one. Zones do not count. Of
// the zero address it is the zero prefix.
func Of(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	prefix, _ := a.Prefix(min(a.BitLen(), 64)) // the length fits all but the zero address
	return prefix
}
