package conductor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestConductorLifecycle follows two publishers from their registration to their
// end: what they publish is found under their instances, and nothing of one that
// is gone.
func TestConductorLifecycle(t *testing.T) {
	w := servicetest.Start(t)
	a, b := servicetest.Registration("i1", 0), servicetest.Registration("i2", 0)
	p := servicetest.Prompt(1, 16)
	wantHits(w, servicetest.Identity, p, "", "")
	w.Register(a)
	w.Register(b)
	wantHits(w, servicetest.Identity, p, "", none("i1")+", "+none("i2"))

	ea, eb := w.Publisher(a), w.Publisher(b)
	ea.Publish(0, ea.Stored(p, servicetest.BlockSize, nil), ea.Stored(p[:8], servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}))
	eb.Publish(0, eb.Stored(p[:4], servicetest.BlockSize, nil))
	both := "i1: 16 GPU 16 CPU 8 DISK 0 DP 0:16"
	wantHits(w, servicetest.Identity, p, "", both+", "+gpu("i2", 4))
	wantHits(w, servicetest.Identity, p, "i1", both)
	ea.Publish(0, ea.Removed(p, servicetest.BlockSize, 3, "GPU"))
	wantHits(w, servicetest.Identity, p, "i1", "i1: 12 GPU 12 CPU 8 DISK 0 DP 0:12")

	w.Unregister(servicetest.Instance("i1"), "i1|t|0")
	wantHits(w, servicetest.Identity, p, "", gpu("i2", 4))
	_, err := w.Conductor().Unregister(servicetest.Instance("i1"))
	wantReason(t, err, contract.NotFound, "not_found", "", "service not found: i1|t")
	if opened, live := w.Net.Count(); opened != 2 || live != 1 {
		t.Errorf("%d sockets opened, %d live; want 2 and 1", opened, live)
	}

	w.Register(a)
	wantHits(w, servicetest.Identity, p, "", none("i1")+", "+gpu("i2", 4))
	ea.Publish(0, ea.Stored(p[:8], servicetest.BlockSize, nil))
	wantHits(w, servicetest.Identity, p, "i1", gpu("i1", 8))
}

// TestConductorBeforeRun: a publisher that registers while the service starts is
// followed from its first message on.
func TestConductorBeforeRun(t *testing.T) {
	w := &servicetest.World{T: t, Net: servicetest.NewNetwork()}
	w.Service = node.New(node.Config{Threads: 1}, w.Net, zerolog.Nop())
	w.UseCases = &w.Service.UseCases
	r := servicetest.Registration("i", 0)
	w.Register(r)
	e := w.Publisher(r)
	e.Publish(0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	wantHits(w, servicetest.Identity, servicetest.Prompt(1, 8), "", gpu("i", 8))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, live := w.Net.Count(); live != 0 {
		t.Errorf("%d sockets are left", live)
	}
}

// TestConductorRanks: the ranks of an instance are publishers of their own. A
// filter by rank ends one of them.
func TestConductorRanks(t *testing.T) {
	w := servicetest.Start(t)
	p := servicetest.Prompt(1, 16)
	for rank := range uint32(2) {
		r := servicetest.Registration("i", rank)
		w.Register(r)
		e := w.Publisher(r)
		e.Publish(rank, e.Stored(p[:8+8*rank], servicetest.BlockSize, nil))
	}
	wantHits(w, servicetest.Identity, p, "", "i: 16 GPU 16 CPU 0 DISK 0 DP 0:8 1:16")
	f := servicetest.Instance("i")
	f.Rank = new(uint32(1))
	w.Unregister(f, "i|t|1")
	wantHits(w, servicetest.Identity, p, "", "i: 8 GPU 8 CPU 0 DISK 0 DP 0:8")
	_, err := w.Conductor().Unregister(f)
	wantReason(t, err, contract.NotFound, "not_found", "", "service not found: i|t|1")
}

// TestConductorUnmatched: an unregistration that matches nothing says what was
// looked for, but no salt, and takes nothing away. Each field narrows.
func TestConductorUnmatched(t *testing.T) {
	w := servicetest.Start(t)
	r := servicetest.Registration("i", 0, func(r *conductor.Registration) { r.Replay, r.Salt = "tcp://i:6000", "s" })
	w.Register(r)
	const narrowed = "no registration of instance i, tenant t matches "
	tests := map[string]struct {
		narrow func(*conductor.Filter)
		text   string
	}{
		"type":            {func(f *conductor.Filter) { f.Type = new(conductor.SGLang) }, narrowed + "type SGLang"},
		"model":           {func(f *conductor.Filter) { f.Model = new("x") }, narrowed + `modelname "x"`},
		"LoRA":            {func(f *conductor.Filter) { f.LoRA = new("x") }, narrowed + `lora_name "x"`},
		"salt":            {func(f *conductor.Filter) { f.Salt = new("secret") }, narrowed + "the additionalsalt given"},
		"endpoint":        {func(f *conductor.Filter) { f.Endpoint = new("e") }, narrowed + `endpoint "e"`},
		"replay endpoint": {func(f *conductor.Filter) { f.Replay = new("") }, narrowed + `replay_endpoint ""`},
		"block size":      {func(f *conductor.Filter) { f.BlockSize = new(uint32(8)) }, narrowed + "block_size 8"},
		"hash seed and rank": {
			func(f *conductor.Filter) { f.HashSeed, f.Rank = new(uint64(9)), new(uint32(0)) },
			narrowed + "hash_seed 9, dp_rank 0",
		},
		"rank":     {func(f *conductor.Filter) { f.Rank = new(uint32(1)) }, "service not found: i|t|1"},
		"instance": {func(f *conductor.Filter) { f.Instance = "j" }, "service not found: j|t"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := servicetest.Instance("i")
			tt.narrow(&f)
			_, err := w.Conductor().Unregister(f)
			wantReason(t, err, contract.NotFound, "not_found", "", tt.text)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("a salt is in %q", err)
			}
		})
	}
	for field, f := range map[string]conductor.Filter{
		"instance_id": {Instance: strings.Repeat("i", 4097)},
		"tenant_id":   {Tenant: strings.Repeat("i", 4097)},
		"modelname":   {Model: new(strings.Repeat("i", 4097))},
	} {
		_, err := w.Conductor().Unregister(f)
		wantReason(t, err, contract.BadRequest, "invalid_field", field, field+": 4097 bytes are too long, at most 4096")
	}
	f := servicetest.Instance("i")
	f.Replay, f.HashSeed = &r.Replay, &r.HashSeed
	w.Unregister(f, "i|t|0")
}

// TestConductorRefusals: what cannot be registered leaves nothing behind, and
// what is registered stays as it was.
func TestConductorRefusals(t *testing.T) {
	w := servicetest.Start(t)
	first := servicetest.Registration("i", 0, func(r *conductor.Registration) { r.Replay = "tcp://i:6000" })
	w.Register(first)
	w.Register(first) // the same again
	bound := servicetest.Registration("bound", 0)
	w.Net.Refuse(bound.Endpoint, true)
	tests := map[string]struct {
		change func(*conductor.Registration)
		kind   contract.Kind
		reason string
		field  string
		text   string // part
	}{
		"endpoint": {
			func(r *conductor.Registration) { r.Endpoint = "nope" },
			contract.BadRequest, "invalid_endpoint", "endpoint", "invalid ZMQ endpoint `nope`: missing scheme",
		},
		"replay endpoint": {
			func(r *conductor.Registration) { r.Replay = "tcp://h" },
			contract.BadRequest, "invalid_endpoint", "replay_endpoint", "invalid ZMQ endpoint `tcp://h`: missing TCP port",
		},
		"wildcard replay endpoint": {
			func(r *conductor.Registration) { r.Replay = "tcp://*:1" },
			contract.BadRequest, "invalid_endpoint", "replay_endpoint", "invalid ZMQ endpoint `tcp://*:1`: wildcard host",
		},
		"a long name": {
			func(r *conductor.Registration) { r.Instance = strings.Repeat("i", 4097) },
			contract.BadRequest, "invalid_field", "instance_id", "instance_id: 4097 bytes are too long, at most 4096",
		},
		"a long salt": {
			func(r *conductor.Registration) { r.Salt = strings.Repeat("s", 1<<20) },
			contract.BadRequest, "invalid_field", "additionalsalt", "additionalsalt: 1048576 bytes are too long, at most 4096",
		},
		"another replay endpoint": {
			func(r *conductor.Registration) { r.Replay = "tcp://i:6001" },
			contract.Conflict, "already_registered", "replay_endpoint", `is already registered at tcp://i:5000 with replay endpoint "tcp://i:6000"`,
		},
		"no replay endpoint": {
			func(r *conductor.Registration) { r.Replay = "" },
			contract.Conflict, "already_registered", "replay_endpoint", "",
		},
		"another hash seed": {
			func(r *conductor.Registration) { r.HashSeed = 7 },
			contract.Conflict, "already_registered", "hash_seed", "",
		},
		"another hash seed for the identity": {
			func(r *conductor.Registration) { r.Instance, r.HashSeed = "j", 7 },
			contract.Conflict, "hash_seed_mismatch", "hash_seed", `model=m tenant=t lora_name="" block_size=4: existing=1337, requested=7`,
		},
		"an endpoint that cannot be bound": {
			func(r *conductor.Registration) { *r = bound },
			contract.BadRequest, "invalid_endpoint", "endpoint", "cannot subscribe to `tcp://bound:5000`: address already in use",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := first
			tt.change(&r)
			wantReason(t, w.Conductor().Register(r), tt.kind, tt.reason, tt.field, tt.text)
		})
	}
	if rows := w.Conductor().Services(); len(rows) != 1 || rows[0].Registration != first {
		t.Errorf("in force: %+v", rows)
	}
	if opened, live := w.Net.Count(); opened != 1 || live != 1 {
		t.Errorf("%d sockets opened, %d live; want one", opened, live)
	}
	wantHits(w, servicetest.Identity, servicetest.Prompt(1, 4), "", none("i"))

	w.Net.Refuse(bound.Endpoint, false)
	w.Register(bound)
	wantHits(w, servicetest.Identity, servicetest.Prompt(1, 4), "", none("bound")+", "+none("i"))
}

// TestConductorClose: from Close on nothing is registered or answered; what is
// registered can still be taken away.
func TestConductorClose(t *testing.T) {
	w := servicetest.Start(t)
	w.Register(servicetest.Registration("i", 0))
	w.Register(servicetest.Registration("j", 0))
	w.Close()
	const text = "shutting down"
	wantReason(t, w.Conductor().Register(servicetest.Registration("k", 0)), contract.Unavailable, "shutting_down", "", text)
	err := w.Conductor().Query(&conductor.Query{Identity: servicetest.Identity}, new(conductor.Answer))
	wantReason(t, err, contract.Unavailable, "shutting_down", "", text)
	w.Unregister(servicetest.Instance("i"), "i|t|0")
	w.Stop()
	if _, live := w.Net.Count(); live != 0 {
		t.Errorf("%d sockets are open after Run", live)
	}
	w.Unregister(servicetest.Instance("j"), "j|t|0") // its stream has ended already
}

// TestConductorServices: what is registered, and how its stream stands.
func TestConductorServices(t *testing.T) {
	w := servicetest.Start(t)
	a, b := servicetest.Registration("b", 0), servicetest.Registration("a", 3)
	w.Register(a)
	w.Register(b)
	w.Net.At(b.Endpoint).Connect()
	e := w.Publisher(b)
	for range 3 {
		e.Publish(3, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
	}
	if err := w.Conductor().Streams().Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	rows := w.Conductor().Services()
	if len(rows) != 2 || rows[0].Registration != a || rows[1].Registration != b {
		t.Fatalf("rows are %+v", rows)
	}
	if r := rows[0]; r.State != kvevents.Connecting || r.HasLast {
		t.Errorf("%s, last %d %v; want connecting without a message", r.State, r.Last, r.HasLast)
	}
	if r := rows[1]; r.State != kvevents.Live || !r.HasLast || r.Last != 2 || r.Status.TokenBlocks == 0 {
		t.Errorf("%s, last %d %v, %d blocks; want live with 2", r.State, r.Last, r.HasLast, r.Status.TokenBlocks)
	}
}

// TestConductorSharedReplay: ranks that name one replay server take their own
// messages from it, whichever came first; a rank that is left alone takes all.
func TestConductorSharedReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		const replay = "tcp://i:6000"
		shared := func(r *conductor.Registration) { r.Replay = replay }
		r0, r1 := servicetest.Registration("i", 0, shared), servicetest.Registration("i", 1, shared)
		w.Register(r0)
		w.Register(r1)
		e, p := w.Publisher(r0), servicetest.Prompt(1, 16)
		replayTo := func(r conductor.Registration) { // the server has message 0 of rank 0 and message 1 of rank 1
			w.Net.At(r.Endpoint).Connect()
			synctest.Wait()
			s := w.Net.At(replay)
			for rank := range uint32(2) {
				s.Send(nil, binary.BigEndian.AppendUint64(nil, uint64(rank)), servicetest.Batch(rank, e.Stored(p[:8+8*rank], servicetest.BlockSize, nil)))
			}
			s.Send(nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
			synctest.Wait()
		}
		foreign := func(want float64) {
			t.Helper()
			if got := servicetest.Sum(w.Metrics()["kv_messages_total"], "foreign_rank"); got != want {
				t.Errorf("%v messages of another rank, want %v", got, want)
			}
		}
		replayTo(r0)
		replayTo(r1)
		foreign(2)
		wantHits(w, servicetest.Identity, p, "", "i: 16 GPU 16 CPU 0 DISK 0 DP 0:8 1:16")

		f := servicetest.Instance("i")
		f.Rank = new(uint32(0))
		w.Unregister(f, "i|t|0")
		replayTo(r1)
		foreign(2)
	})
}

// TestConductorSweep: what has no blocks and nobody registered for it is gone
// after a while: all of publishers that have left, and of others what only their
// events named.
func TestConductorSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		for i := range 10 {
			r := servicetest.Registration(fmt.Sprint("i", i), 0, func(r *conductor.Registration) { r.Model = fmt.Sprint("m", i%5) })
			w.Register(r)
			e := w.Publisher(r)
			e.Publish(0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
		}
		stays := servicetest.Registration("stays", 0, func(r *conductor.Registration) { r.Type = conductor.Standard })
		w.Register(stays)
		other := servicetest.Dict{"model_name": "other", "base_block_idx": 0}
		e := w.Publisher(stays)
		e.Publish(0, servicetest.Envelope(1, "stored", servicetest.Sequence(servicetest.Prompt(1, 8), servicetest.BlockSize), other))
		counts := func(when string, publishers, spaces, namespaces, owners, blocks float64) {
			t.Helper()
			if err := w.Conductor().Streams().Barrier(t.Context()); err != nil {
				t.Fatal(err)
			}
			m := w.Metrics()
			for _, c := range []struct {
				name   string
				family []servicetest.Sample
				want   float64
			}{
				{"publishers", m["conductor_publishers"], publishers},
				{"Spaces", m["conductor_spaces"], spaces},
				{"namespaces", m["conductor_namespaces"], namespaces},
				{"owners", m["conductor_owners"], owners},
				{"blocks", m["conductor_index_blocks"], blocks},
			} {
				if got := servicetest.Sum(c.family); got != c.want {
					t.Errorf("%s: %v %s, want %v", when, got, c.name, c.want)
				}
			}
		}
		counts("all there", 11, 7, 7, 11, 22)
		for i := range 10 {
			w.Unregister(servicetest.Instance(fmt.Sprint("i", i)), fmt.Sprintf("i%d|t|0", i))
		}
		time.Sleep(31 * time.Second)
		counts("one left", 1, 2, 2, 1, 2)
		e.Publish(0, servicetest.Envelope(2, "removed", servicetest.Sequence(servicetest.Prompt(1, 8), servicetest.BlockSize), other))
		synctest.Wait()
		time.Sleep(31 * time.Second)
		counts("nothing to show", 1, 1, 1, 0, 0)
	})
}

// wantReason checks an error of the Conductor API: its kind, codes, and a part of
// its text.
func wantReason(t testing.TB, err error, kind contract.Kind, reason, field, text string) {
	t.Helper()
	var e *contract.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want %s", err, reason)
	}
	if e.Kind != kind || e.Reason != reason || e.Field != field || !strings.Contains(e.Text, text) || e.Text == "" {
		t.Errorf("error is (%d) %s %q %q, want (%d) %s %q %q", e.Kind, e.Reason, e.Field, e.Text, kind, reason, field, text)
	}
}
