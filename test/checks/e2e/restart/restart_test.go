package restart_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// serve runs the service with its state in a directory.
func serve(t *testing.T, dir, interval string) *e2e.Service {
	t.Helper()
	return e2e.Serve(t, nil, "--data-dir", dir, "--snapshot-interval", interval)
}

func register(t *testing.T, s *e2e.Service, engines []*engine) {
	t.Helper()
	for _, e := range engines {
		s.Must(t, http.StatusCreated, http.MethodPost, "/workers", e.record(), nil)
		e.followed()
	}
}

// TestExact: after a kill, everything is as before once the engines are proved: at
// once where there is a replay, else with the next message. What engines did
// meanwhile is in it, and those that restarted have nothing.
func TestExact(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, "30ms")
	engines := []*engine{newEngine(t, 1, true), newEngine(t, 2, false), newEngine(t, 3, true), newEngine(t, 4, false), newEngine(t, 5, true)}
	idle, quiet, went, gone, missed := engines[0], engines[1], engines[2], engines[3], engines[4]
	register(t, s, engines)
	for _, e := range engines {
		for c := range chains {
			e.store(c, chainBlocks-c)
		}
		e.remove(0, 5)
	}
	e2e.Eventually(t, "the index has all", func() error { return claimed(t, s, engines, true) })
	book(t, s, "before")
	snapshotAfter(t, dir)
	s.Kill()

	went.remove(1, 2)
	went.store(5, chainBlocks)
	gone.restart()
	for range ringSize + 1 {
		missed.store(2, 3)
	}
	missed.remove(3, 0)
	s.Run()
	ready(t, s)
	for _, e := range engines {
		e.followed()
	}
	replayed := []*engine{idle, went}
	e2e.Eventually(t, "those with a replay are proved", func() error { return claimed(t, s, replayed, true) })
	if err := claimed(t, s, engines, false); err != nil {
		t.Error(err)
	}
	if got, _ := overlaps(t.Context(), s); got[quiet.id] != [chains]int{} {
		t.Errorf("not proved, but claimed: %v", got[quiet.id])
	}
	quiet.store(4, 5)
	gone.store(0, 1)
	e2e.Eventually(t, "all are decided", func() error {
		if n := ranks(t, s, "pending"); n > 0 {
			return fmt.Errorf("%d are pending", n)
		}
		return claimed(t, s, []*engine{idle, went, quiet, gone}, true)
	})
	if err := claimed(t, s, engines, false); err != nil {
		t.Error(err)
	}
	if proved, refuted := ranks(t, s, "proved"), ranks(t, s, "refuted"); proved != 3 || refuted != 2 {
		t.Errorf("%d proved, %d refuted, want 3 and 2", proved, refuted)
	}
	if !free(t, s, "before") {
		t.Error("the booking is gone")
	}
}

// TestStop: a normal stop loses no booking, however long ago the last snapshot was;
// a worker that was removed stays so.
func TestStop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, "1h")
	engines := []*engine{newEngine(t, 1, true), newEngine(t, 2, true)}
	register(t, s, engines)
	engines[0].store(0, 5)
	e2e.Eventually(t, "the index has all", func() error { return claimed(t, s, engines, true) })
	for i := range 20 {
		book(t, s, fmt.Sprint("r", i))
	}
	free(t, s, "r3")
	s.Must(t, http.StatusOK, http.MethodDelete, "/workers/2", nil, nil)
	loads := carried(t, s)
	s.Stop()
	s.Run()
	ready(t, s)
	e2e.Eventually(t, "the engine is proved", func() error { return claimed(t, s, engines[:1], true) })
	if got := carried(t, s); got != loads {
		t.Errorf("loads %s, before the stop %s", got, loads)
	}
	var workers []struct {
		ID uint64 `json:"worker_id"`
	}
	s.Must(t, http.StatusOK, http.MethodGet, "/workers", nil, &workers)
	if len(workers) != 1 || workers[0].ID != 1 {
		t.Errorf("workers %v", workers)
	}
	if free(t, s, "r3") {
		t.Error("a booking that was freed is back")
	}
}

// carried is what the workers carry, as text.
func carried(t *testing.T, s *e2e.Service) string {
	t.Helper()
	all, err := s.Loads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(all)
}

func book(t *testing.T, s *e2e.Service, id string) {
	t.Helper()
	s.Must(t, http.StatusOK, http.MethodPost, "/select_and_reserve",
		e2e.Object{"model_name": model, "token_ids": prompt(1, 3), "reservation_id": id}, nil)
}

// free reports whether the booking was there.
func free(t *testing.T, s *e2e.Service, id string) bool {
	t.Helper()
	a, err := s.Call(t.Context(), http.MethodDelete, "/reservations/"+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Status/100 != 2 && a.Status != http.StatusNotFound {
		t.Fatalf("free: %v", a)
	}
	return a.Status/100 == 2
}

// booking is what a caller knows of a reservation.
type booking struct {
	id                   string
	acked, asked, ackedF time.Time // booked; the free was asked for, and acknowledged
}

// bookings is a caller that books and frees until the service does not answer.
type bookings struct {
	mu  sync.Mutex // guards all
	all []*booking // of this life of the service
	n   int
	// past are those of former lives, freed: a process that was killed before it had
	// written a snapshot leaves them in the file.
	past []*booking
}

func (b *bookings) run(ctx context.Context, s *e2e.Service, life int, rnd *rand.Rand) {
	for ctx.Err() == nil {
		b.n++
		k := &booking{id: fmt.Sprintf("r-%d-%d", life, b.n)}
		body := e2e.Object{"model_name": model, "token_ids": prompt(b.n%chains, chainBlocks), "reservation_id": k.id}
		a, err := s.Call(ctx, http.MethodPost, "/select_and_reserve", body)
		if err != nil || a.Status != http.StatusOK {
			return
		}
		k.acked = time.Now()
		b.mu.Lock()
		b.all = append(b.all, k)
		some := b.all[rnd.IntN(len(b.all))]
		b.mu.Unlock()
		if rnd.IntN(2) == 0 && some.asked.IsZero() {
			some.asked = time.Now()
			if a, err := s.Call(ctx, http.MethodDelete, "/reservations/"+some.id, nil); err != nil || a.Status/100 != 2 {
				return
			}
			some.ackedF = time.Now()
		}
	}
}

// check compares what the new process has with what was acknowledged when the
// snapshot was begun, and frees all.
func (b *bookings) check(t *testing.T, s *e2e.Service, begun time.Time) (restored int) {
	t.Helper()
	var left []*booking
	for _, k := range append(b.past, b.all...) {
		there := free(t, s, k.id)
		switch {
		case k.asked.IsZero() && k.acked.Before(begun):
			if restored++; !there {
				t.Errorf("%s was booked %v before the last snapshot, and is gone", k.id, begun.Sub(k.acked))
			}
		case !k.ackedF.IsZero() && k.ackedF.Before(begun) && there:
			t.Errorf("%s was freed %v before the last snapshot, and is back", k.id, begun.Sub(k.ackedF))
		}
		if there {
			k.asked, k.ackedF = time.Now(), time.Now()
			left = append(left, k)
		}
	}
	b.past, b.all = left, nil
	return restored
}

// TestKill: the process is killed at random moments, while bookings and events run.
// The next one claims no block that its engine does not have, whatever the engine has
// done meanwhile, and has the bookings of the last snapshot.
func TestKill(t *testing.T) {
	t.Parallel()
	kills := 200
	if testing.Short() {
		kills = 5
	}
	dir := t.TempDir()
	s := serve(t, dir, "25ms")
	var engines []*engine
	for id := range uint64(6) {
		engines = append(engines, newEngine(t, id, id%2 == 0))
	}
	register(t, s, engines)
	booked, proved, b := 0, 0, new(bookings)
	book(t, s, "kept") // callers do not free it, so that at least one is restored
	b.past = append(b.past, &booking{id: "kept", acked: time.Now()})
	snapshotAfter(t, dir)
	for life := range kills {
		rnd, caller := rand.New(rand.NewPCG(uint64(life), 15)), sync.WaitGroup{}
		caller.Go(func() { b.run(t.Context(), s, life, rand.New(rand.NewPCG(uint64(life), 16))) })
		for range rnd.IntN(400) {
			if e := engines[rnd.IntN(len(engines))]; e.id != 5 { // which rests for this
				e.work(rnd)
			}
		}
		if rnd.IntN(3) == 0 {
			snapshotAfter(t, dir) // engines are quiet, callers are not
		}
		s.Kill()
		caller.Wait()
		begun := begunAt(t, dir)

		for _, e := range engines {
			away(e, rnd)
		}
		s.Run()
		ready(t, s)
		for _, e := range engines {
			e.followed()
		}
		e2e.Eventually(t, "replays have decided", func() error {
			if n := ranks(t, s, "pending"); n > len(engines)/2 {
				return fmt.Errorf("%d are pending", n)
			}
			return claimed(t, s, engines, false)
		})
		for _, e := range engines {
			e.work(rnd)
		}
		e2e.Eventually(t, "all have decided", func() error {
			if n := ranks(t, s, "pending"); n > 0 {
				return fmt.Errorf("%d are pending", n)
			}
			return claimed(t, s, engines, false)
		})
		proved += ranks(t, s, "proved")
		booked += b.check(t, s, begun)
		if t.Failed() {
			t.Fatalf("kill %d", life)
		}
	}
	t.Logf("%d kills: %d ranks proved, %d bookings restored", kills, proved, booked)
	if proved == 0 || booked == 0 {
		t.Errorf("%d ranks proved, %d bookings restored", proved, booked)
	}
}

// away is what an engine does while nobody listens.
func away(e *engine, rnd *rand.Rand) {
	before := int(e.seq)
	switch rnd.IntN(6) {
	case 0:
		e.restart()
		n := rnd.IntN(before + 20)
		if e.replay == nil && n > 0 {
			n = before + 2 // or the next number could be the expected one
		}
		for range n {
			e.work(rnd)
		}
	case 1, 2:
		for range rnd.IntN(8) {
			e.work(rnd)
		}
	case 3:
		for range ringSize + rnd.IntN(20) {
			e.work(rnd)
		}
	}
}

// begunAt is when the snapshot in a directory was begun.
func begunAt(t *testing.T, dir string) time.Time {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "snapshot"))
	if err != nil || len(b) < 36 {
		t.Fatalf("snapshot: %d bytes, %v", len(b), err)
	}
	return time.Unix(0, int64(binary.LittleEndian.Uint64(b[28:])))
}

// TestRefused: the service starts empty with a file that it cannot use, says so in a
// line, keeps the file, and writes a good one.
func TestRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, "1h")
	s.Must(t, http.StatusCreated, http.MethodPost, "/workers", newEngine(t, 1, false).record(), nil)
	s.Stop()
	path := filepath.Join(dir, "snapshot")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"cut": good[:len(good)-7], "version": append([]byte("selstate\x63"), good[9:]...), "foreign": []byte("PK\x03\x04"),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s.Run()
		var workers []any
		s.Must(t, http.StatusOK, http.MethodGet, "/workers", nil, &workers)
		if len(workers) != 0 {
			t.Errorf("%s: %d workers", name, len(workers))
		}
		s.Stop() // a line of the log may come after the answer to a later call
		if n := strings.Count(s.Output(), "snapshot refused ("+name+")"); n != 1 {
			t.Errorf("%s: %d lines say so: %s", name, n, s.Output())
		}
		if kept, err := os.ReadFile(path + ".refused"); err != nil || string(kept) != string(bad) {
			t.Errorf("%s was not kept: %v", name, err)
		}
		if text := s.Output(); strings.Contains(text, "panic") {
			t.Error(text)
		}
	}
}

// TestTwoProcesses: a second process does not start on the same directory.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := serve(t, dir, "1h")
	second := e2e.Start(t, e2e.Options{Command: []string{e2e.Binary(t), "--port", "0", "--data-dir", dir}})
	code, ended := second.Wait(e2e.Patience)
	if want := fmt.Sprintf("data directory %s is used by process %d", dir, first.PID()); !ended || code == 0 || !strings.Contains(second.Output(), want) {
		t.Errorf("exit code %d: %s", code, second.Output())
	}
	first.Must(t, http.StatusOK, http.MethodGet, "/health", nil, nil)
}

// TestDiskFull: a snapshot for which there is no room is counted and logged, and the
// service goes on; the one before stays.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	port := e2e.FreePort(t)
	s := e2e.New(t, e2e.Options{
		Address: fmt.Sprint("127.0.0.1:", port),
		// Files end at 16 KiB. (Standard output is a pipe.)
		Command: []string{"sh", "-c", `ulimit -f 32; exec "$@"`, "sh", e2e.Binary(t), "--port", fmt.Sprint(port), "--data-dir", dir, "--snapshot-interval", "25ms"},
	})
	s.Run()
	engines := []*engine{newEngine(t, 1, false)}
	register(t, s, engines)
	snapshotAfter(t, dir)
	for i := range 60 {
		s.Must(t, http.StatusOK, http.MethodPost, "/select_and_reserve",
			e2e.Object{"model_name": model, "token_ids": make([]uint32, 100*blockSize), "reservation_id": fmt.Sprint("r", i)}, nil)
	}
	e2e.Eventually(t, "a failure is counted", func() error {
		a, err := s.Call(t.Context(), http.MethodGet, "/metrics", nil)
		if err != nil {
			return err
		}
		if strings.Contains(string(a.Body), `select_service_snapshot_failures_total{reason="disk_full"} 0`) {
			return errors.New("not yet")
		}
		return nil
	})
	if !free(t, s, "r7") {
		t.Error("the service forgot a booking")
	}
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, ended := s.Wait(e2e.Patience); !ended || code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(filepath.Join(dir, "snapshot")); err != nil {
		t.Errorf("the snapshot before: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "snapshot.tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a file is left: %v", err)
	}
}

// TestCarried: what an idle engine without a replay has is kept over any number of
// restarts and snapshots until it is proved; what it takes out of its cache then is
// gone.
func TestCarried(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, "30ms")
	engines := []*engine{newEngine(t, 1, false)}
	register(t, s, engines)
	engines[0].store(0, 7)
	engines[0].store(1, 3)
	e2e.Eventually(t, "the index has all", func() error { return claimed(t, s, engines, true) })
	snapshotAfter(t, dir)
	for range 3 {
		s.Kill()
		s.Run()
		ready(t, s)
		engines[0].followed()
		snapshotAfter(t, dir)
		if got, err := overlaps(t.Context(), s); err != nil || got[1] != [chains]int{} || ranks(t, s, "pending") != 1 {
			t.Fatalf("not proved, but claimed: %v %v", got[1], err)
		}
	}
	engines[0].remove(0, 4)
	e2e.Eventually(t, "the engine is proved", func() error { return claimed(t, s, engines, true) })
}

// TestSlots: the slot tracker alone keeps its workers and their load.
func TestSlots(t *testing.T) {
	t.Parallel()
	dir, port := t.TempDir(), fmt.Sprint(e2e.FreePort(t))
	s := e2e.New(t, e2e.Options{
		Address: "127.0.0.1:" + port,
		Command: []string{e2e.Binary(t), "slots", "--port", port, "--data-dir", dir, "--snapshot-interval", "30ms", "--max-memory", "64MiB"},
	})
	s.Run()
	s.Must(t, http.StatusCreated, http.MethodPost, "/register", e2e.Object{"model_name": model, "worker_id": 3, "block_size": 16, "dp_start": 0, "dp_size": 2}, nil)
	s.Must(t, http.StatusCreated, http.MethodPost, "/add", e2e.Object{
		"model_name": model, "request_id": "r", "worker_id": 3, "dp_rank": 1, "sequence_hashes": []uint64{1, 2}, "new_isl_tokens": 32,
	}, nil)
	loads := func() string {
		a, err := s.Call(t.Context(), http.MethodGet, "/loads", nil)
		if err != nil {
			t.Fatal(err)
		}
		return a.String()
	}
	before := loads()
	snapshotAfter(t, dir)
	s.Kill()
	s.Run()
	if got := loads(); got != before || !strings.Contains(got, "32") {
		t.Errorf("loads %s, before the kill %s", got, before)
	}
}

// TestWorkersFile: what a workers file does not name goes, whatever the snapshot has.
func TestWorkersFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, "1h")
	engines := []*engine{newEngine(t, 1, true), newEngine(t, 2, true)}
	register(t, s, engines)
	engines[0].store(0, 3)
	e2e.Eventually(t, "the index has all", func() error { return claimed(t, s, engines, true) })
	s.Stop()
	path := filepath.Join(t.TempDir(), "workers.yaml")
	text := fmt.Sprintf("workers:\n  - worker_id: 1\n    model_name: %s\n    endpoint: http://w1:8000\n    block_size: %d\n    kv_events_endpoint: %s\n    replay_endpoint: %s\n",
		model, blockSize, engines[0].pub.Endpoint, engines[0].replay.Endpoint)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s = e2e.Serve(t, nil, "--data-dir", dir, "--workers-file", path)
	e2e.Eventually(t, "the file's worker is alone", func() error {
		var workers []struct {
			ID uint64 `json:"worker_id"`
		}
		if err := s.Do(t.Context(), http.MethodGet, "/workers", nil, &workers); err != nil {
			return err
		}
		if len(workers) != 1 || workers[0].ID != 1 {
			return fmt.Errorf("workers %v", workers)
		}
		return claimed(t, s, engines[:1], true)
	})
}
