package selection_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// again lets a request have the first answer.
func again(r *selection.SelectRequest) { r.IfExists = selection.ReturnFirst }

// reserve selects with a reservation of that id.
func reserve(w *servicetest.World, id string, tokens []uint32, change ...func(*selection.SelectRequest)) (selection.Selection, error) {
	req := servicetest.Ask(tokens)
	req.ReservationID = &id
	for _, f := range change {
		f(req)
	}
	return w.Select(context.Background(), req, true)
}

// takenText is the refusal of an id that a rank of worker 1 has.
func takenText(id string) string {
	return fmt.Sprintf("failed to book scheduler state: Request %s already exists (assigned to worker WorkerWithDpRank { worker_id: 1, dp_rank: 0 })", id)
}

// TestFirstAnswerAgain: what makes a request the same as the one that booked its
// id (decision E4), and that it then gets the same answer and books nothing.
func TestFirstAnswerAgain(t *testing.T) {
	a := servicetest.Prompt(1, 10) // two blocks and two tokens
	change := func(i int) []uint32 {
		b := servicetest.Prompt(1, 10)
		b[i] ^= 1
		return b
	}
	tests := map[string]struct {
		tokens []uint32
		change func(*selection.SelectRequest)
		same   bool
	}{
		"the same":           {a, func(*selection.SelectRequest) {}, true},
		"another block":      {change(1), func(*selection.SelectRequest) {}, false},
		"another rest":       {change(9), func(*selection.SelectRequest) {}, false},
		"shorter rest":       {a[:9], func(*selection.SelectRequest) {}, false},
		"longer":             {servicetest.Prompt(1, 14), func(*selection.SelectRequest) {}, false},
		"other LoRA":         {a, func(r *selection.SelectRequest) { r.Prompt.LoRA = "x" }, false},
		"other salt":         {a, func(r *selection.SelectRequest) { r.Prompt.CacheSalt = "x" }, false},
		"as hashes":          {a, func(r *selection.SelectRequest) { r.Prompt = servicetest.Hashes(a) }, true},
		"other hashes":       {a, func(r *selection.SelectRequest) { r.Prompt = servicetest.Hashes(change(1)) }, false},
		"longer hashes":      {a, func(r *selection.SelectRequest) { r.Prompt = servicetest.Hashes(a); r.Prompt.ISLTokens++ }, false},
		"other scope":        {a, func(r *selection.SelectRequest) { r.Scope.Tenant = "u" }, false},
		"pinned there":       {a, func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1} }, true},
		"pinned elsewhere":   {a, func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 2} }, false},
		"allowed there":      {a, onWorkers(7, 1), true},
		"allowed elsewhere":  {a, onWorkers(2), false},
		"filter leaves none": {a, func(r *selection.SelectRequest) { r.HasAllowedWorkers = true }, false},
		"other priority":     {a, func(r *selection.SelectRequest) { r.PriorityJump = 5 }, true},
		"not asked for":      {a, func(r *selection.SelectRequest) { r.IfExists = selection.Refuse }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff)
			w.Put(servicetest.Record(1, 1))
			first, err := reserve(w, "r", a, func(r *selection.SelectRequest) { r.SelectionID, r.Lease = new("echo"), time.Minute })
			if err != nil {
				t.Fatal(err)
			}
			w.Put(servicetest.Record(2, 1)) // cheaper
			w.Put(servicetest.Record(3, 1, func(r *catalog.Record) { r.Scope.Tenant = "u" }))
			load := w.LoadText()
			got, err := reserve(w, "r", tt.tokens, again, tt.change)
			if tt.same {
				first.Repeated = true
				if err != nil || !reflect.DeepEqual(got, first) {
					t.Errorf("answer is\n%+v, %v, want\n%+v", got, err, first)
				}
			} else {
				servicetest.WantError(t, err, contract.Conflict, takenText("r"))
			}
			w.WantLoad(load)
			if err := w.Free("r"); err != nil {
				t.Fatal(err)
			}
			if sel, err := reserve(w, "r", a, again); err != nil || sel.Repeated {
				t.Errorf("after the end: %+v, %v, want a reservation", sel, err)
			}
		})
	}
}

// TestShortPrompts: prompts without a complete block have no hashes; tokens, LoRA
// and salt tell them apart all the same.
func TestShortPrompts(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	prompts := map[string]selection.Prompt{}
	for _, tokens := range [][]uint32{{}, {1}, {1, 2}, {2, 1}} {
		for _, lora := range []string{"", "x", "y"} {
			for _, salt := range []string{"", "x"} {
				prompts[fmt.Sprint(tokens, lora, "/", salt)] = selection.Prompt{TokenIDs: tokens, HasTokenIDs: true, LoRA: lora, CacheSalt: salt}
			}
		}
	}
	for first, p := range prompts {
		if _, err := reserve(w, "r", nil, func(r *selection.SelectRequest) { r.Prompt = p }); err != nil {
			t.Fatal(err)
		}
		for second, p := range prompts {
			_, err := reserve(w, "r", nil, again, func(r *selection.SelectRequest) { r.Prompt = p })
			if (err == nil) != (first == second) {
				t.Errorf("%s after %s: %v", second, first, err)
			}
		}
		if err := w.Free("r"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReservedAgain is TestFirstAnswerAgain for reservations on a rank that the
// caller names, and for requests on the other way than the first.
func TestReservedAgain(t *testing.T) {
	a := servicetest.Prompt(1, 10)
	request := func(worker uint64, tokens []uint32) *selection.ReserveRequest {
		return &selection.ReserveRequest{
			Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: worker}, Prompt: servicetest.Ask(tokens).Prompt, IfExists: selection.ReturnFirst, Lease: time.Minute,
		}
	}
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	first, err := w.Reserve(request(1, a))
	if err != nil || first.Repeated || first.Lease != time.Minute {
		t.Fatalf("%+v, %v", first, err)
	}
	first.Repeated = true
	load := w.LoadText()
	if got, err := w.Reserve(request(1, a)); err != nil || got != first {
		t.Errorf("%+v, %v, want %+v", got, err, first)
	}
	text := "Request r already exists (assigned to worker WorkerWithDpRank { worker_id: 1, dp_rank: 0 })"
	for name, req := range map[string]*selection.ReserveRequest{
		"other worker": request(2, a), "unknown worker": request(7, a), "other prompt": request(1, servicetest.Prompt(2, 10)),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Reserve(req)
			servicetest.WantError(t, err, contract.Conflict, text)
		})
	}
	got, err := reserve(w, "r", a, again)
	want := selection.Selection{
		ReservationID: new("r"), Scope: servicetest.Scope, Rank: catalog.Rank{Worker: 1}, Endpoint: servicetest.Address(1), Lease: time.Minute, Repeated: true, PlacementOnly: true,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("select_and_reserve: %+v, %v, want %+v", got, err, want)
	}
	w.WantLoad(load)
	sel, err := reserve(w, "s", a)
	if err != nil {
		t.Fatal(err)
	}
	req := request(sel.Rank.Worker, a)
	req.ID = "s"
	if got, err := w.Reserve(req); err != nil || got != (selection.Reservation{ID: "s", Scope: servicetest.Scope, Rank: sel.Rank, Endpoint: sel.Endpoint, Repeated: true}) {
		t.Errorf("reservation: %+v, %v", got, err)
	}
}

// TestRetryBeforeRefusal: an answer is given again although the request could
// not be placed now: every worker is overloaded, the wait queue full or busy.
func TestRetryBeforeRefusal(t *testing.T) {
	a := servicetest.Prompt(1, 8)
	for name, change := range map[string]func(*node.Config){
		"overloaded": servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(0))}), "busy": servicetest.Queueing(0), "full": limitedQueue(t, 0),
	} {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, change)
			w.Put(servicetest.Record(1, 1))
			first := w.Book("r", a)
			if got, err := reserve(w, "r", a, again); err != nil || got.Rank != first.Rank || !got.Repeated {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestRetryElsewhere: a replica that knows a reservation from another one answers
// with what it knows, if scope, blocks and worker are the request's.
func TestRetryElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := servicetest.Pair(t)
		b.Put(servicetest.Record(2, 1))
		if _, err := reserve(a, "r", servicetest.Prompt(1, 10), leased(time.Minute)); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		got, err := reserve(b, "r", servicetest.Prompt(1, 10), again, func(r *selection.SelectRequest) { r.SelectionID = new("echo") })
		want := selection.Selection{
			SelectionID: new("echo"), ReservationID: new("r"), Scope: servicetest.Scope, Rank: catalog.Rank{Worker: 1}, Endpoint: servicetest.Address(1),
			Lease: time.Minute, Repeated: true, PlacementOnly: true,
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("answer is %+v, %v, want %+v", got, err, want)
		}
		_, err = reserve(b, "r", servicetest.Prompt(2, 10), again)
		servicetest.WantError(t, err, contract.Conflict, takenText("r"))
		req := &selection.ReserveRequest{Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Hashes(servicetest.Prompt(1, 10)), IfExists: selection.ReturnFirst}
		if r, err := b.Reserve(req); err != nil || !r.Repeated || r.Rank != want.Rank || r.Lease != time.Minute {
			t.Errorf("reservation: %+v, %v", r, err)
		}
		twice := req.Prompt.SequenceHashes
		req.Prompt.SequenceHashes = append(twice, twice...) // the ledger keeps each block once
		if _, err := b.Reserve(req); err != nil {
			t.Error(err)
		}
		req.Rank.Worker = 2
		_, err = b.Reserve(req)
		servicetest.WantError(t, err, contract.Conflict, "Request r already exists (assigned to worker WorkerWithDpRank { worker_id: 1, dp_rank: 0 })")
		if err := b.Renew("r"); err != nil {
			t.Error(err)
		}
		b.WantLoad("1/0: 10 2 1, 2/0: 0 0 0")
	})
}

// TestSlotsReservationElsewhere: a reservation of the slot tracker that a replica
// knows from another one takes its id in its own scope only (decision S4), and is
// no one's first try.
func TestSlotsReservationElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, b := m.Start(t, "a", servicetest.EventsOff), m.Start(t, "b", servicetest.EventsOff)
		m.Connect(t, "a", "b")
		other := catalog.Scope{Model: servicetest.Scope.Model, Tenant: "u"}
		for _, w := range []*servicetest.World{a, b} {
			w.Put(servicetest.Record(1, 1))
			w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope = other }))
		}
		if err := a.SlotsAdd(servicetest.SlotsReservation("x", 1, 0, 10, servicetest.Hashes(servicetest.Prompt(1, 10)).SequenceHashes...)); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		b.WantLoad("1/0: 10 2 1, m/u, 2/0: 0 0 0")
		_, err := reserve(b, "x", servicetest.Prompt(1, 10), again)
		servicetest.WantError(t, err, contract.Conflict, takenText("x"))
		elsewhere := func(r *selection.SelectRequest) { r.Scope, r.Dialect = other, contract.V16 }
		if got, err := reserve(b, "x", servicetest.Prompt(1, 10), again, elsewhere); err != nil || got.Repeated || got.Rank.Worker != 2 {
			t.Errorf("in another scope: %+v, %v, want a reservation", got, err)
		}
	})
}

// TestOldestAnswerIsForgotten: first answers are bounded; a forgotten one is a
// conflict, as without it.
func TestOldestAnswerIsForgotten(t *testing.T) {
	if testing.Short() {
		t.Skip("65,536 reservations")
	}
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	const bound = 1 << 16
	for i := range bound + 1 {
		w.Book(fmt.Sprint(i), servicetest.Prompt(1, 4))
	}
	if n := w.Remembered().Answers; n != bound {
		t.Errorf("%d answers are remembered, want %d", n, bound)
	}
	_, err := reserve(w, "0", servicetest.Prompt(1, 4), again)
	servicetest.WantError(t, err, contract.Conflict, takenText("0"))
	told, ok := errors.AsType[*contract.Error](err)
	if !ok {
		t.Fatal(err)
	}
	if got, want := told.TextIn(contract.V16), "selection 0 is already reserved or being reserved"; got != want {
		t.Errorf("in 1.6 the text is %q, want %q", got, want)
	}
	if sel, err := reserve(w, "1", servicetest.Prompt(1, 4), again); err != nil || !sel.Repeated {
		t.Errorf("the second one: %+v, %v", sel, err)
	}
}

// TestSameIDAtOnce: of many requests with one id and one prompt one books, and
// all get the same answer.
func TestSameIDAtOnce(t *testing.T) {
	for name, change := range map[string]func(*node.Config){"without queue": servicetest.EventsOff, "with queue": servicetest.Queueing(16)} {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, change)
			for id := range uint64(8) {
				w.Put(servicetest.Record(id, 1))
			}
			for round := range 50 {
				id, tokens := fmt.Sprint(round), servicetest.Prompt(uint32(round), 10)
				answers := make([]selection.Selection, 8)
				var wg sync.WaitGroup
				for i := range answers {
					wg.Go(func() {
						var err error
						if answers[i], err = reserve(w, id, tokens, again); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				booked := 0
				for i, a := range answers {
					if !a.Repeated {
						booked++
					}
					answers[i].Repeated = false
					if !reflect.DeepEqual(answers[i], answers[0]) {
						t.Errorf("answers differ:\n%+v\n%+v", answers[i], answers[0])
					}
				}
				if booked != 1 {
					t.Fatalf("%d reservations", booked)
				}
			}
			if n := servicetest.Sum(w.Metrics()["reservations_live"]); n != 50 {
				t.Errorf("%v reservations live, want 50", n)
			}
			if n := servicetest.Sum(w.Metrics()["selections_total"], "repeated"); n != 50*7 {
				t.Errorf("%v retries were counted, want %d", n, 50*7)
			}
		})
	}
}

// TestIDInFlight: in the 1.6 dialect the id of a reservation that waits is refused
// to all others, except to a retry, until its caller has gone.
func TestIDInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, keeping)
		selectPending(w, "x", servicetest.Prompt(1, 8), func(r *selection.SelectRequest) { r.Advisory = true })
		explicit := selection.ReserveRequest{Scope: servicetest.Scope, ID: "x", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(1, 8)).Prompt}
		refused := func(err error) {
			t.Helper()
			servicetest.WantError(t, err, contract.Conflict, "Request x is being booked")
			wantText16(t, err, "selection x is already reserved or being reserved")
		}
		first := startCall(w, "x", servicetest.Prompt(1, 8), in16)
		_, err := reserve(w, "x", servicetest.Prompt(1, 8), in16)
		refused(err)
		_, err = reservePending(w, "x", func(r *selection.PendingRequest) { r.Dialect = contract.V16 })
		refused(err)
		retry := startCall(w, "x", servicetest.Prompt(1, 8), in16, again)
		if !first.waits() || !retry.waits() {
			t.Fatal("no request waits")
		}
		first.cancel()
		synctest.Wait()
		_, err = reservePending(w, "x", func(r *selection.PendingRequest) { r.Dialect = contract.V16 })
		refused(err) // the retry has it now
		retry.cancel()
		synctest.Wait()
		if r, err := reservePending(w, "x", func(r *selection.PendingRequest) { r.Dialect = contract.V16 }); err != nil {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := w.Free("x"); err != nil {
			t.Fatal(err)
		}

		second := startCall(w, "x", servicetest.Prompt(1, 8), in16)
		explicit.Dialect = contract.V16
		_, err = w.Reserve(&explicit)
		refused(err)
		explicit.Dialect = contract.V13 // as 1.3 has it, who comes first has the id
		if _, err = w.Reserve(&explicit); err != nil {
			t.Fatal(err)
		}
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		if err := w.PrefillComplete("x"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		servicetest.WantError(t, second.err, contract.Conflict, takenText("x"))
		if err := w.Free("x"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Select(context.Background(), req16("x"), true); err != nil {
			t.Error(err)
		}
	})
}

// TestIDBeforeOtherFaults: in the 1.6 dialect an id that is in use is told before what else is
// wrong with a request, in 1.3 after it, when the request would book.
func TestIDBeforeOtherFaults(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Book("x", servicetest.Prompt(1, 8))
	faulty := func(r *selection.SelectRequest) {
		r.Prompt = servicetest.Hashes(servicetest.Prompt(1, 8))
		r.Prompt.ISLTokens = 0
	}
	_, err := reserve(w, "x", nil, faulty)
	servicetest.WantError(t, err, contract.BadRequest, "isl_tokens must be greater than 0")
	_, err = reserve(w, "x", nil, faulty, in16)
	servicetest.WantError(t, err, contract.Conflict, takenText("x"))
}

func req16(id string) *selection.SelectRequest {
	r := servicetest.Ask(servicetest.Prompt(1, 8))
	r.ReservationID, r.Dialect = &id, contract.V16
	return r
}

// TestEmptyID: it is an id like others, also where texts name it.
func TestEmptyID(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Book("", servicetest.Prompt(1, 8))
	_, err := w.Select(context.Background(), req16(""), true)
	servicetest.WantError(t, err, contract.Conflict, takenText(""))
	wantText16(t, err, "selection  is already reserved or being reserved")
}

// wantText16 wants an error to have that text in the 1.6 dialect.
func wantText16(t *testing.T, err error, want string) {
	t.Helper()
	e, ok := errors.AsType[*contract.Error](err)
	if !ok {
		t.Fatalf("error is %v, want %q", err, want)
	}
	if got := e.TextIn(contract.V16); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
