//go:build cgo

package libzmq_test

import (
	"errors"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents/libzmq"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// An endpoint that the policy forbids is refused, and, as libzmq looks names up itself, a name
// whose addresses the policy would have to check.
func TestRefused(t *testing.T) {
	rule, err := catalog.ParseEndpointRule("tcp://10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	opt := libzmq.DefaultOptions()
	opt.Endpoints.Allowed = []catalog.EndpointRule{rule}
	source, l := zmqtest.Start(t, libzmq.New(opt)), zmqtest.NewLog()
	if _, err := source.Subscribe("tcp://engine:5557", nil, l.Message, l.Status); !errors.Is(err, libzmq.ErrName) {
		t.Errorf("Subscribe to a name: %v, want ErrName", err)
	}
	var refused *catalog.EndpointError
	if _, err := source.Subscribe("tcp://127.0.0.1:5557", nil, l.Message, l.Status); !errors.As(err, &refused) {
		t.Errorf("Subscribe to a forbidden address: %v", err)
	}
}

// A message for which the account has no room is dropped and counted; the next one comes.
func TestAccount(t *testing.T) {
	opt := libzmq.DefaultOptions()
	opt.Streams = memory.NewAccount("streams", 1<<10)
	source, l := zmqtest.Start(t, libzmq.New(opt)), zmqtest.NewLog()
	pub := zmqtest.NewPublisher(t, "")
	defer pub.Close()
	zmqtest.Subscribe(t, source, pub.Endpoint, l)
	pub.Subscribers(1)
	pub.Publish(0, make([]byte, 2<<10))
	pub.Publish(1, []byte("one"))
	l.Await(t, "message that fits", zmqtest.Has("up", zmqtest.First))
	if n, events := opt.Streams.Refused(), len(l.Snapshot()); n != 1 || events != 2 {
		t.Errorf("%d refused, %d events, want 1 and 2", n, events)
	}
}
