package engines

import (
	"errors"
	"net/netip"
	"testing"
)

// TestAddresses: no connection is opened to where clouds serve credentials.
func TestAddresses(t *testing.T) {
	for _, address := range []string{"169.254.169.254:80", "[fe80::1%eth0]:80", "[::ffff:169.254.169.254]:80", "224.0.0.1:80"} {
		err := Dialer{}.checkAddress("tcp", address, nil)
		if _, refused := errors.AsType[*AddressError](err); !refused {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := (Dialer{}).checkAddress("tcp", netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), 80).String(), nil); err != nil {
		t.Error(err)
	}
}
