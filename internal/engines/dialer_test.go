package engines

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestAddresses: no connection is opened to where clouds serve credentials, whatever the host is
// called and allowed by. The addresses are those of the clouds' documentation; the check alone is
// asked, and nothing is sent to them.
func TestAddresses(t *testing.T) {
	named := Dialer{Endpoints: catalog.EndpointPolicy{Allowed: []catalog.EndpointRule{{Name: "metadata"}}}}
	for _, address := range []string{
		"169.254.169.254", "fe80::1%eth0", "::ffff:169.254.169.254", "224.0.0.1", "ff02::1",
		"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "::ffff:100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:42::42",
		"64:ff9b::a9fe:a9fe", "64:ff9b::168.63.129.16", "2002:a9fe:a9fe::1", "::169.254.169.254",
	} {
		for _, d := range []Dialer{{}, named} {
			err := d.Check("metadata", netip.MustParseAddr(address))
			if _, refused := errors.AsType[*AddressError](err); !refused {
				t.Errorf("%s: %v", address, err)
			}
		}
	}
	for _, address := range []string{"10.0.0.1", "127.0.0.1", "::1", "fd00::1", "100.100.100.201", "64:ff9b::a00:1"} {
		if err := (Dialer{}).Check("h", netip.MustParseAddr(address)); err != nil {
			t.Error(err)
		}
	}
}

// TestResolve: the addresses that a host has are those that may be dialed.
func TestResolve(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	if all, err := (Dialer{}).Resolve(t.Context(), "localhost"); err != nil || !slices.Contains(all, here) {
		t.Errorf("%v, %v", all, err)
	}
	elsewhere := catalog.EndpointPolicy{Allowed: []catalog.EndpointRule{{Network: netip.MustParsePrefix("10.0.0.0/8")}}}
	if all, err := (Dialer{Endpoints: elsewhere}).Resolve(t.Context(), "localhost"); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := (Dialer{}).Resolve(t.Context(), "no.such.invalid"); err == nil {
		t.Error("a name without addresses")
	}
}
