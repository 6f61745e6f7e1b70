package kvevents

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/pkg/hashing"
)

// TestSamples proves that of each kind of what is dropped the first one since
// the last look is kept, with its stream and why, and never anything that the
// message said.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "secret"
		r, pub := startRig(t, "")
		defer r.stop()
		add(t, r.subs, StreamConfig{Rank: rank(1), Endpoint: "pub1", Applier: &IndexApplier{
			Converter: NewConverter(hashing.Layout{BlockSize: 2}, 1, nil), Index: r.index, Slot: 1,
		}})
		want := func(what string, want ...Sample) {
			t.Helper()
			synctest.Wait()
			if got := r.subs.Samples(); !slices.Equal(got, want) {
				t.Errorf("%s: samples %v, want %v", what, got, want)
			}
		}
		want("nothing came")
		pub.live(0, r.batch(0, 0, storedEvent(1), list{"BlockRemoved", list{}}, dict{
			"type": "BlockStored", "locality": "REMOTE",
			"block_hashes": list{1}, "token_ids": list{1, 2}, "block_size": 2,
		}))
		want("used, empty or not the rank's")

		for i := range 3 {
			pub.live(uint64(2*i+1), secret)
			pub.live(uint64(2*i+2), r.batch(0, 0, list{secret}, storedEvent(1)))
			pub.send([]byte(secret), []byte(secret), []byte(secret))
		}
		other := r.src.open("pub1")
		other.send([]byte(secret))
		other.live(0, secret)
		want("the first of each",
			Sample{rank(0), "message has frames of lengths 6 6 6"},
			Sample{rank(0), ErrNotABatch.Error()},
			Sample{rank(0), "bad_tag"})
		want("all is told")

		other.send(make([][]byte, 8)...)
		other.live(1, packed(t, list{1.5, list{storedEvent(1)}, secret}))
		other.live(2, r.batch(0, 1, storedEvent(1), list{"BlockStored", list{secret + secret}, nil, list{secret}, 3, nil, "GPU", nil}))
		want("another stream's",
			Sample{rank(1), "message has frames of lengths 0 0 0 0 0 …"},
			Sample{rank(1), ErrRank.Error()},
			Sample{rank(1), "bad_hash"})
	})
}
