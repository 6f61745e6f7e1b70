package engines

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"syscall"

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
// allow it, or it is link-local or multicast.
type AddressError struct{ text string }

func (e *AddressError) Error() string { return e.text }

// Dial is the DialContext of an http.Transport. A refused address is an *AddressError.
func (d Dialer) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var plain net.Dialer
	if !d.Endpoints.AllowsName(host) {
		plain.Control = d.checkAddress
	}
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

// checkAddress refuses an address before a connection to it is opened.
func (d Dialer) checkAddress(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	addr := at.Addr().Unmap()
	switch {
	case !d.Endpoints.AllowsAddress(addr.WithZone(""), 0):
		return &AddressError{addr.String() + " is not among the allowed endpoints (--allow-endpoints)"}
	case addr.IsLinkLocalUnicast(), addr.IsMulticast(): // where clouds serve credentials
		return &AddressError{addr.String() + ": link-local and multicast addresses are not asked"}
	}
	return nil
}
