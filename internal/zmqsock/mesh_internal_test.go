package zmqsock

import (
	"testing"

	"github.com/pebbe/zmq4"
)

// Where packets are dropped the kernel's attempts to connect get further and
// further apart; a mesh makes its own. (To see that takes longer than a test may.)
func TestMeshLimitsAttempts(t *testing.T) {
	z, err := zmq4.NewSocket(zmq4.SUB)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = z.Close() }()
	if err := NewMesh(nil, "", nil).subscriberOptions().apply(z); err != nil {
		t.Fatal(err)
	}
	if got, err := z.GetConnectTimeout(); err != nil || got != meshConnect {
		t.Errorf("connect timeout %s, error %v, want %s", got, err, meshConnect)
	}
}
