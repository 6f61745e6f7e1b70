package access

import "testing"

// FuzzDecode: whatever a tokens file has, it is refused, or each caller in it has a
// name and a role that can be given.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("tokens:\n" + entry("a", "t", "roles: [call]", "tenant: x")))
	f.Add([]byte("names:\n- {name: cn, roles: [peer, metrics]}\n"))
	f.Add([]byte("tokens: [&a {name: a}, *a]\nnames: {<<: *a}"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, content []byte) {
		d, err := decode("f", content)
		if err != nil {
			return
		}
		check := func(c *Caller) {
			if c.Name == "" || c.roles == 0 || c.roles.has(0) || c.roles.has(Public) || c.Scoped() && (c.May(Peer) || c.May(Metrics)) {
				t.Errorf("%+v", c)
			}
		}
		for _, token := range d.tokens {
			check(token.caller)
		}
		for _, c := range d.names {
			check(c)
		}
	})
}
