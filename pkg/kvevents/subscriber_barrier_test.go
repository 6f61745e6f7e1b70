package kvevents

import "testing"

// TestBarrierShows proves that whoever has waited for what was received sees it
// in the status of the stream and in the counts of its events.
func TestBarrierShows(t *testing.T) {
	r, pub := startRig(t, "")
	defer r.stop()
	const rounds = 2000
	for i := range uint64(rounds) {
		pub.live(i, r.batch(0, 0, storedEvent(int(i))))
		if err := r.subs.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		tally := r.subs.Tally()
		if st := r.subs.Streams()[0]; !st.HasLast || st.Last != i || st.State != Live || tally.ByReason()[Applied] != i+1 {
			t.Fatalf("message %d: status %+v, %d events applied", i, st, tally.ByReason()[Applied])
		}
	}
}
