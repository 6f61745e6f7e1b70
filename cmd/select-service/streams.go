//go:build !libzmq

package main

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/kvevents"
)

// transport is what the version says of engines' streams: nothing, as they run on our own ZMTP.
func transport() string { return "" }

// newStreams returns the sockets of engines' streams, those of the hub, and what runs both.
func newStreams(hub *zmqsock.Hub, _ zmqsock.Options, _ zerolog.Logger) (streams kvevents.Source, run func(context.Context) error) {
	return hub, hub.Run
}
