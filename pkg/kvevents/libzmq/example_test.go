//go:build cgo

package libzmq_test

import (
	"context"
	"fmt"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/kvevents/libzmq"
)

// discard is an Applier that drops every batch.
type discard struct{}

func (discard) Apply([]byte, *kvevents.Workspace) error { return nil }
func (discard) Clear()                                  {}
func (discard) Replayed()                               {}

// A rank's stream is followed through libzmq.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	source := libzmq.New(libzmq.DefaultOptions())
	sockets := make(chan error, 1)
	go func() { sockets <- source.Run(ctx) }()

	streams := kvevents.NewSubscribers(source, kvevents.DefaultConfig(1), &kvevents.Counters{})
	err := streams.Add(kvevents.StreamConfig{Rank: catalog.Rank{Worker: 7}, Endpoint: "tcp://127.0.0.1:5557", Applier: discard{}})
	fmt.Println(len(streams.Streams()), "stream:", err)

	stop()
	if err := <-sockets; err != nil {
		fmt.Println(err)
	}
	// Output:
	// 1 stream: <nil>
}
