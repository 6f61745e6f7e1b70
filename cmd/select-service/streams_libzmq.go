//go:build libzmq

package main

import (
	"context"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/kvevents/libzmq"
)

// transport is what the version says of engines' streams.
func transport() string { return "+libzmq-" + libzmq.Version() }

// newStreams returns the sockets of engines' streams, on libzmq, and what runs them and the hub,
// which has those of replicas.
func newStreams(hub *zmqsock.Hub, limits zmqsock.Options, log zerolog.Logger) (streams kvevents.Source, run func(context.Context) error) {
	opt := libzmq.DefaultOptions()
	opt.MaxFrame, opt.Streams, opt.Replay, opt.Endpoints = limits.MaxMessage, limits.Streams, limits.Replay, limits.Endpoints
	source := libzmq.New(opt)
	log.Warn().Str("libzmq", libzmq.Version()).
		Str("not_bounded", "frames of a message and their memory until it ends, messages that wait in libzmq, connections to bound endpoints, attempts to connect, name lookups").
		Msg("engines' streams run on libzmq")
	return source, func(ctx context.Context) error {
		parts, ctx := errgroup.WithContext(ctx)
		parts.Go(func() error { return hub.Run(ctx) })
		parts.Go(func() error { return source.Run(ctx) })
		return parts.Wait()
	}
}
