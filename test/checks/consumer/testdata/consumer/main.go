// The consumer gives one engine's message to an index by a source of its own, and books what
// it finds in a ledger that replicas would follow.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// source has one publisher, in the program itself.
type source struct {
	message func(frames [][]byte, buffer *memory.Buffer, received time.Time) bool
	status  func(up bool)
}

var _ kvevents.Source = (*source)(nil)

func (s *source) Subscribe(_ string, _ func([][]byte, time.Time) bool, message func([][]byte, *memory.Buffer, time.Time) bool, status func(bool)) (uint64, error) {
	s.message, s.status = message, status
	return 1, nil
}

func (s *source) Request(string, [][]byte, func([][]byte, *memory.Buffer) bool) (uint64, error) {
	return 0, fmt.Errorf("no replays")
}
func (s *source) Resume(uint64) {}
func (s *source) Close(uint64)  {}

// applier is the index's side of the stream.
type applier struct {
	index     *indexer.Space
	converter *kvevents.Converter
	applied   chan struct{}
	decoder   kvevents.Decoder
	tally     kvevents.Tally
}

func (a *applier) Apply(payload []byte, w *kvevents.Workspace) error {
	if err := a.decoder.Decode(payload, &w.Batch); err != nil {
		return err
	}
	a.converter.Apply(&w.Batch, a.index, &a.tally)
	close(a.applied)
	return nil
}
func (a *applier) Clear()    {}
func (a *applier) Replayed() {}

// silent is a transport without other replicas.
type silent struct{}

func (silent) Publish(string, []byte) error { return nil }
func (silent) PublishEither(string, []byte, string, func() []byte) error {
	return nil
}
func (silent) Follow(string, func(string, []byte), func(bool)) (func(), error) {
	return func() {}, nil
}
func (silent) GetAnnounced(context.Context, string, string) (io.ReadCloser, error) {
	return nil, fmt.Errorf("no replicas")
}

type blockSize uint32

func (b blockSize) BlockSize(catalog.Scope) (uint32, bool) { return uint32(b), true }

func main() {
	scope, rank := catalog.Scope{Model: "llama", Tenant: "default"}, catalog.Rank{Worker: 7}
	layout := hashing.Layout{BlockSize: 4}

	index := indexer.New()
	index.SetAccount(indexer.NewAccount(memory.NewAccount(memory.Index, 1<<20)))
	engine := &source{}
	streams := kvevents.NewSubscribers(engine, kvevents.DefaultConfig(1), &kvevents.Counters{})
	events := &applier{index: index, converter: kvevents.NewConverter(layout, 0, nil), applied: make(chan struct{})}
	if err := streams.Add(kvevents.StreamConfig{Rank: rank, Endpoint: "in the program", Applier: events}); err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- streams.Run(ctx) }()
	payload, err := msgpack.Marshal([]any{1.5, []any{[]any{"BlockStored", []uint64{1, 2}, nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 4, nil}}, 0})
	if err != nil {
		log.Fatal(err)
	}
	engine.status(true)
	engine.message([][]byte{nil, make([]byte, 8), payload}, &memory.Buffer{}, time.Now())
	<-events.applied

	replica := replicasync.New(replicasync.Options{Process: 1, Queues: memory.NewAccount(memory.Replication, 1<<20)}, blockSize(4), silent{}, silent{}, time.Now)
	ledger := reservations.New(1, time.Now, replica)
	replica.Attach(ledger)
	ledger.SetLimits(reservations.Limits{Reservations: 10, Memory: memory.NewAccount(memory.Ledger, 1<<20)})
	ledger.PutRank(scope, 0, rank)

	prompt := layout.AppendLocal(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, hashing.LocalSeed("", ""), nil)
	var overlap indexer.Overlap
	index.Overlap(prompt, &overlap)
	cached, _, _ := overlap.At(0)
	_, err = ledger.Book(scope, reservations.Request{ID: "r", Hashes: hashing.AppendSequence(nil, prompt)}, func(*reservations.View) (reservations.Placement, error) {
		return reservations.Placement{Rank: rank}, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d blocks of worker %d, booked\n", cached, rank.Worker)
	stop()
	<-ended
}
