package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

const (
	feedModel, probeModel = "feed", "probe"

	workers, ranks = 8, 8 // of feedModel; probeModel has one rank
	blockSize      = 16
	promptBlocks   = 8
	promptTokens   = promptBlocks * blockSize
	sharedBlocks   = promptBlocks / 2 // that all prompts begin with
)

var feedScope, probeScope = catalog.Scope{Model: feedModel, Tenant: catalog.DefaultName}, catalog.Scope{Model: probeModel, Tenant: catalog.DefaultName}

// sender is a ledger whose reservations are published, with an HTTP interface for
// the one route that other replicas ask for.
type sender struct {
	ledger  *reservations.Ledger
	replica *replicasync.Replica
	mesh    *zmqsock.Mesh
	http    *http.Server
	stop    context.CancelFunc
	running sync.WaitGroup

	mu  sync.Mutex // guards err
	err error
}

func newSender(ctx context.Context, endpoint string) (*sender, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &sender{stop: cancel}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, err
	}
	process := rand.Uint64() | 1
	hub := zmqsock.New(zmqsock.DefaultOptions())
	s.mesh = zmqsock.NewMesh(hub, endpoint, replicasync.Topics(false))
	s.replica = replicasync.New(replicasync.Options{Process: process, URL: "http://" + listen.Addr().String()},
		blockSizes{}, s.mesh, nobody{}, time.Now)
	s.ledger = reservations.New(process, time.Now, s.replica)
	s.replica.Attach(s.ledger)
	for slot := range uint32(workers * ranks) {
		s.ledger.PutRank(feedScope, slot, rankOf(slot))
	}
	s.ledger.PutRank(probeScope, probeSlot, rankOf(probeSlot))

	s.http = &http.Server{Handler: http.HandlerFunc(s.snapshot), ReadHeaderTimeout: time.Second}
	s.run(func() error { return hub.Run(ctx) })
	s.run(func() error { return s.replica.Run(ctx) })
	s.run(func() error { return s.http.Serve(listen) })
	if err := s.mesh.Open(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *sender) run(f func() error) {
	s.running.Go(func() {
		err := f()
		if errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.Canceled) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = errors.Join(s.err, err)
	})
}

func (s *sender) close() error {
	s.mesh.Close()
	s.stop()
	_ = s.http.Close() // nothing of it is needed any more
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *sender) snapshot(w http.ResponseWriter, r *http.Request) {
	if err := s.replica.WriteSnapshot(r.Context(), w, replicasync.PageOf(r.URL.Query())); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// connect books until the receiver shows it, so that nothing is lost to a
// subscription that is still on its way.
func (s *sender) connect(ctx context.Context, in receiver) error {
	for i := -1; i > -200; i-- {
		if err := s.bookProbe(i); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
		got, err := in.loads(ctx, probeModel)
		if err != nil {
			return err
		}
		if err := s.freeProbe(i); err != nil {
			return err
		}
		if got.requests > 0 {
			_, _, err := in.await(ctx, 0)
			return err
		}
	}
	return fmt.Errorf("%s does not follow this process", in.url)
}

func (s *sender) book(i int) error {
	hashes := make([]uint64, promptBlocks)
	for b := range hashes {
		hashes[b] = uint64(b + 1)
		if b >= sharedBlocks {
			hashes[b] = uint64(i+1)<<8 | uint64(b)
		}
	}
	return s.bookOn(feedScope, "feed-"+strconv.Itoa(i), uint32(i%(workers*ranks)), hashes)
}

func (s *sender) bookOn(sc catalog.Scope, id string, slot uint32, hashes []uint64) error {
	at := reservations.Placement{Slot: slot, Rank: rankOf(slot), PrefillTokens: promptTokens}
	_, err := s.ledger.Book(sc, reservations.Request{ID: id, Hashes: hashes, TrackPrefill: true},
		func(*reservations.View) (reservations.Placement, error) { return at, nil })
	return err
}

func (s *sender) complete(i int) error { return s.ledger.PrefillComplete("feed-" + strconv.Itoa(i)) }

func (s *sender) free(i int) error { return s.ledger.Free("feed-" + strconv.Itoa(i)) }

func (s *sender) bookProbe(i int) error {
	return s.bookOn(probeScope, "probe-"+strconv.Itoa(i), probeSlot, nil)
}

func (s *sender) freeProbe(i int) error { return s.ledger.Free("probe-" + strconv.Itoa(i)) }

// unsent are the events that the sender itself dropped.
func (s *sender) unsent() map[string]uint64 {
	dropped := s.replica.Stats().Dropped
	maps.DeleteFunc(dropped, func(reason string, n uint64) bool { return n == 0 || !strings.HasPrefix(reason, "send_") })
	return dropped
}

// probeSlot is behind the slots of feedModel.
const probeSlot = workers * ranks

func rankOf(slot uint32) catalog.Rank {
	return catalog.Rank{Worker: uint64(slot/ranks) + 1, DP: slot % ranks}
}

type blockSizes struct{}

func (blockSizes) BlockSize(catalog.Scope) (uint32, bool) { return blockSize, true }

// nobody is the Fetcher of a replica without peers.
type nobody struct{}

func (nobody) GetAnnounced(context.Context, string, string) (io.ReadCloser, error) {
	return nil, errors.New("the sender asks nobody")
}
