package engines

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Certificates says whom to trust, and what to present, in connections to a host; see certs.Side.
type Certificates interface{ Client(host string) *tls.Config }

// Dialer connects to the HTTP servers of engines, for those who ask them something.
type Dialer struct {
	// Endpoints is the policy for the addresses of engines; the ports of its rules do not matter.
	Endpoints catalog.EndpointPolicy
	// Certificates are for engines behind https; nil: the system's authorities are trusted, and
	// nothing is presented.
	Certificates Certificates
}

// AddressError is the error for an address to which no connection is opened: the policy does not
// allow it, or it is link-local, multicast, or one at which a cloud serves metadata.
type AddressError struct{ text string }

func (e *AddressError) Error() string { return e.text }

// Dial is the DialContext of an http.Transport. A refused address is an *AddressError.
func (d Dialer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	plain := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return d.Check(host, at.Addr())
	}}
	return plain.DialContext(ctx, network, address)
}

// DialTLS is the DialTLSContext of an http.Transport.
func (d Dialer) DialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := d.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(address) // Dial has checked it
	conn := tls.Client(raw, d.TLS(host))
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error says more
		return nil, err
	}
	return conn, nil
}

// TLS returns the configuration of one connection to a host.
func (d Dialer) TLS(host string) *tls.Config {
	if d.Certificates == nil {
		return &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	return d.Certificates.Client(host)
}

// Check returns an *AddressError for an address of a host to which no connection may be opened. It
// is for dialers of others, too, who call it from net.Dialer.Control with the host that was to be
// dialed.
func (d Dialer) Check(host string, addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	switch {
	case !d.Endpoints.AllowsName(host) && !d.Endpoints.AllowsAddress(addr, 0):
		return &AddressError{addr.String() + " is not among the allowed endpoints (--allow-endpoints)"}
	case isNeverAsked(addr), isNeverAsked(embedded(addr)): // where clouds serve credentials
		return &AddressError{addr.String() + ": link-local, multicast and cloud metadata addresses are not asked"}
	}
	return nil
}

// metadata are the addresses at which clouds serve credentials and settings of a machine, beside
// link-local ones: AWS, Google Cloud and Scaleway over IPv6, Alibaba Cloud, Azure's WireServer, and
// Oracle Cloud's classic one.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("fd00:42::42"),
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
}

func isNeverAsked(addr netip.Addr) bool {
	return addr.IsLinkLocalUnicast() || addr.IsMulticast() || slices.Contains(metadata, addr)
}

// Networks of IPv6 whose addresses lead to one of IPv4, and the byte at which that begins.
var embeddings = []struct {
	network netip.Prefix
	at      int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64, RFC 6052
	{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible, RFC 4291
	{netip.MustParsePrefix("2002::/16"), 2},     // 6to4, RFC 3056
}

// embedded returns the address of IPv4 to which one of IPv6 leads, the zero Addr if none.
func embedded(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.Addr{}
	}
	bytes := addr.As16()
	for _, e := range embeddings {
		if e.network.Contains(addr) {
			return netip.AddrFrom4([4]byte(bytes[e.at : e.at+4]))
		}
	}
	return netip.Addr{}
}

// resolveIn is how long Resolve waits for an answer.
const resolveIn = 2 * time.Second

// Resolve returns the addresses of a host to which connections may be opened.
func (d Dialer) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveIn)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	allowed := all[:0]
	for _, addr := range all {
		if d.Check(host, addr) == nil {
			allowed = append(allowed, addr.Unmap().WithZone(""))
		}
	}
	return allowed, nil
}
