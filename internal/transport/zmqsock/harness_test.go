package zmqsock_test

import (
	"testing"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// start runs a hub for the length of the test.
func start(t testing.TB, opt zmqsock.Options) *zmqsock.Hub {
	t.Helper()
	return zmqtest.Start(t, zmqsock.New(opt))
}

func subscribe(t testing.TB, h *zmqsock.Hub, endpoint string, l *zmqtest.Log) uint64 {
	t.Helper()
	return zmqtest.Subscribe(t, h, endpoint, l)
}
