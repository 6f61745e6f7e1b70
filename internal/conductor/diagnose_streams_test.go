package conductor_test

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestDiagnoseStreams proves that both doctors tell of streams that are not
// whole, and of none that is, and that /services has the same counts.
func TestDiagnoseStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		r, bystander := servicetest.Registration("i", 0), servicetest.Registration("j", 0)
		bystander.Model = "another"
		w.Register(r)
		w.Register(bystander)
		p := servicetest.Prompt(1, 16)
		// want looks for a sentence of both, or for none; ENDPOINT is the publisher's.
		want := func(text string) {
			t.Helper()
			synctest.Wait()
			if err := w.Conductor().Streams().Barrier(context.Background()); err != nil {
				t.Fatal(err)
			}
			of, err := w.Conductor().Diagnose(&conductor.Query{Identity: servicetest.Identity, Tokens: p}, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				*diagnose.Diagnosis
				who, endpoint string
			}{
				{of, "instance i rank 0: ", r.Endpoint},
				{diagnosisOf(w, diagnose.Request{Tokens: p}, 0), "instance 1 rank 0: ", servicetest.Endpoint(1, 0)},
			} {
				if text != "" {
					wantFinding(t, c.Diagnosis, c.who+strings.ReplaceAll(text, "ENDPOINT", c.endpoint))
					continue
				}
				for _, f := range c.Findings {
					if strings.Contains(f, "stream") || strings.Contains(f, "connect") {
						t.Errorf("a stream that is whole: %q", f)
					}
				}
			}
		}
		a, b := w.Engine(1, 0), w.Publisher(r)
		publish := func(skip uint64, tokens []uint32) {
			a.Seq += skip
			b.Seq += skip
			a.Publish(0, a.Stored(tokens, servicetest.BlockSize, nil))
			b.Publish(0, b.Stored(tokens, servicetest.BlockSize, nil))
		}
		status := func(up bool) {
			w.Net.At(servicetest.Endpoint(1, 0)).Status(up)
			w.Net.At(r.Endpoint).Status(up)
		}
		want("not connected to ENDPOINT yet")
		status(true)
		want("")
		publish(3, p[:8])
		want("at least the first 3 messages of its stream were never seen")
		status(false)
		want("the connection to ENDPOINT is lost: what happens there is not seen")
		status(true)
		publish(4, p)
		want("messages of its stream were lost (4 so far) and no replay had them: some blocks may be missing, others long gone")
		if row := w.Conductor().Services()[0]; row.Lost != 4 || row.Restarts != 0 || row.State != kvevents.Stale {
			t.Errorf("%d lost, %d restarts, %s", row.Lost, row.Restarts, row.State)
		}
		status(false)
		want("the connection to ENDPOINT is lost: what happens there is not seen, and messages of its stream were lost before (4 so far)")
		status(true)
		a.Seq, b.Seq = 0, 0
		publish(0, p) // another engine
		want("")
		if row := w.Conductor().Services()[0]; row.Lost != 4 || row.Restarts != 1 || row.State != kvevents.Live {
			t.Errorf("%d lost, %d restarts, %s", row.Lost, row.Restarts, row.State)
		}
	})
}

// TestConductorRestarts proves that the Conductor's streams notice a restart after one message,
// and that of an idle engine by its empty ring.
func TestConductorRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		const replay = "tcp://i:6000"
		plain, replayed := servicetest.Registration("i", 0), servicetest.Registration("j", 0, func(r *conductor.Registration) { r.Replay = replay })
		w.Register(plain)
		w.Register(replayed)
		end := func() {
			t.Helper()
			synctest.Wait()
			w.Net.At(replay).Send(nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
			synctest.Wait()
		}
		old, fresh := servicetest.Prompt(1, 16), servicetest.Prompt(2, 16)
		a, b := w.Publisher(plain), w.Publisher(replayed)
		w.Net.At(plain.Endpoint).Status(true)
		w.Net.At(replayed.Endpoint).Status(true)
		synctest.Wait()
		s := w.Net.At(replay)
		s.Send(nil, binary.BigEndian.AppendUint64(nil, 0), servicetest.Batch(0, b.Stored(old, servicetest.BlockSize, nil)))
		end()
		a.Publish(0, a.Stored(old, servicetest.BlockSize, nil))
		wantHits(w, servicetest.Identity, old, "", gpu("i", 16)+", "+gpu("j", 16))

		for _, r := range []conductor.Registration{plain, replayed} {
			w.Net.At(r.Endpoint).Status(false)
			w.Net.At(r.Endpoint).Status(true)
		}
		end()
		a.Seq = 0
		a.Publish(0, a.Stored(fresh, servicetest.BlockSize, nil))
		wantHits(w, servicetest.Identity, old, "", none("i")+", "+none("j"))
		wantHits(w, servicetest.Identity, fresh, "", gpu("i", 16)+", "+none("j"))
	})
}

// TestDiagnoseUnused proves that the selection service's doctor tells of events
// that were not used where nothing is indexed.
func TestDiagnoseUnused(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(servicetest.Prompt(1, 16), 8, nil), e.Stored(servicetest.Prompt(2, 16), 8, nil))
	d := diagnosisOf(w, diagnose.Request{Tokens: servicetest.Prompt(1, 16)}, 0)
	wantFinding(t, d, "no blocks indexed for this model and tenant")
	wantFinding(t, d, "events that were not used, of the workers of all models and tenants: 2 block_size_mismatch")
}
