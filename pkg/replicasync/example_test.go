package replicasync_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

var (
	scope = catalog.Scope{Model: "llama", Tenant: "default"}
	rank  = catalog.Rank{Worker: 7}
)

// inProcess is a Transport and a Fetcher for replicas in one program. A replica also
// hears itself, and ignores that.
type inProcess struct {
	mu        sync.Mutex
	followers []func(topic string, payload []byte)
	peer      *replicasync.Replica // whose snapshot Get reads
}

func (p *inProcess) Publish(topic string, payload []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, deliver := range p.followers {
		deliver(topic, bytes.Clone(payload))
	}
	return nil
}

func (p *inProcess) PublishEither(topic string, payload []byte, _ string, _ func() []byte) error {
	return p.Publish(topic, payload)
}

func (p *inProcess) Follow(_ string, deliver func(string, []byte), status func(bool)) (func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followers = append(p.followers, deliver)
	status(true)
	return func() {}, nil
}

func (p *inProcess) GetAnnounced(ctx context.Context, _, _ string) (io.ReadCloser, error) {
	var page bytes.Buffer
	err := p.peer.WriteSnapshot(ctx, &page, replicasync.PageRequest{})
	return io.NopCloser(&page), err
}

// blockSizes are the scopes of both catalogs.
type blockSizes map[catalog.Scope]uint32

func (b blockSizes) BlockSize(sc catalog.Scope) (uint32, bool) {
	size, known := b[sc]
	return size, known
}

// onFetched is a Watcher that waits for the first snapshot.
type onFetched chan error

func (onFetched) Connected(string, bool)      {}
func (onFetched) Lost(string, uint64, uint64) {}
func (f onFetched) Fetched(_ string, _ uint64, _ int, err error) {
	f <- err
}

// newReplica returns a replica with a ledger that knows one rank.
func newReplica(opt replicasync.Options, net *inProcess) (*replicasync.Replica, *reservations.Ledger) {
	r := replicasync.New(opt, blockSizes{scope: 16}, net, net, time.Now)
	ledger := reservations.New(opt.Process, time.Now, r)
	r.Attach(ledger)
	ledger.PutRank(scope, 0, rank)
	return r, ledger
}

// A replica that starts late hears the announcement of another one and reads its
// snapshot.
func Example() {
	net, fetched := &inProcess{}, make(onFetched, 1)
	early, ledger := newReplica(replicasync.Options{Process: 1, URL: "http://early:8080"}, net)
	net.peer = early
	choose := func(*reservations.View) (reservations.Placement, error) {
		return reservations.Placement{Slot: 0, Rank: rank}, nil
	}
	if _, err := ledger.Book(scope, reservations.Request{ID: "r1", Hashes: []uint64{11, 12}}, choose); err != nil {
		fmt.Println(err)
		return
	}

	late, copied := newReplica(replicasync.Options{Process: 2, URL: "http://late:8080", Watcher: fetched}, net)
	if _, err := late.Register("inproc://early"); err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { _ = late.Run(ctx) })
	running.Go(func() { _ = early.Run(ctx) })

	fmt.Println("snapshot read:", <-fetched)
	load := copied.Loads(scope)[0]
	fmt.Printf("worker %d: %d blocks, %d requests\n", load.Rank.Worker, load.Blocks, load.Requests)
	// Output:
	// snapshot read: <nil>
	// worker 7: 2 blocks, 1 requests
}
