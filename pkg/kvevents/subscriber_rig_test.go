package kvevents

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// rig is one stream of real batches into an index, in a bubble.
type rig struct {
	*testing.T
	subs  *Subscribers
	src   *fakeSource
	stop  func()
	index *indexer.Space

	mu   sync.Mutex
	lags []time.Duration
}

// startRig follows rank 0 of a worker that has ranks 0 and 1, from a publisher
// with a replay server if replay is not empty.
func startRig(t *testing.T, replay string) (*rig, *fakeSocket) {
	r := &rig{T: t, src: &fakeSource{}, index: indexer.New()}
	config := DefaultConfig(1)
	config.Lag = func(lag time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lags = append(r.lags, lag)
	}
	r.subs, r.stop = startSubscribers(t, r.src, config)
	ranks := func(dp uint32) (uint32, bool) { return dp, dp < 2 }
	add(t, r.subs, StreamConfig{
		Rank: rank(0), Endpoint: "pub", Replay: replay,
		Applier: &IndexApplier{Converter: NewConverter(hashing.Layout{BlockSize: 2}, 0, ranks), Index: r.index},
	})
	pub := r.src.open("pub")
	pub.status(true)
	return r, pub
}

// state returns the state of the stream once all is applied.
func (r *rig) state() StreamState {
	synctest.Wait()
	return r.subs.Streams()[0].State
}

func (r *rig) wantLags(what string, want ...time.Duration) {
	r.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.lags, want) {
		r.Errorf("%s: lags %v, want %v", what, r.lags, want)
	}
	r.lags = nil
}

type (
	list = []any
	dict = map[string]any
)

func packed(t testing.TB, v any) string {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// unix is the bubble's time as a batch states it, some time ago.
func unix(ago time.Duration) float64 { return float64(time.Now().Add(-ago).UnixNano()) / 1e9 }

// batch is one of a rank with events, stated as sent some time ago.
func (r *rig) batch(ago time.Duration, rank any, events ...any) string {
	return packed(r.T, list{unix(ago), append(list{}, events...), rank})
}

func storedEvent(name int) any {
	return list{"BlockStored", list{name}, nil, list{name, name + 1}, 2, nil, "GPU", nil}
}

var clearedEvent = list{"AllBlocksCleared"}
