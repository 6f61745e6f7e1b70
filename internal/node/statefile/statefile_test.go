package statefile

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/test/helpers/length"
)

var rewrite = flag.Bool("rewrite", false, "write golden files")

var (
	sc      = catalog.Scope{Model: "llama", Tenant: "acme"}
	written = time.Unix(1_700_000_000, 5)
)

// content is all that a file has.
type content struct {
	Ranks    []rankHead
	Pieces   [][]piece // by rank; nil if they are void
	Workers  []catalog.Record
	Tracked  []catalog.TrackedRecord
	Reserved []reservations.Reservation
}

// example is a file with something of every kind.
func example() content {
	var c content
	for n := range uint32(3) {
		c.Ranks = append(c.Ranks, rankHead{
			Scope: sc, BlockSize: 16, Eagle: n == 2, Rank: catalog.Rank{Worker: 1, DP: n},
			From: kvevents.Checkpoint{
				Endpoint: fmt.Sprint("tcp://a:", 5557+n), Since: 3, Last: 7 + uint64(n),
				Recent: []kvevents.Fingerprint{{Number: 7 + uint64(n), Length: 99, Ends: bytes.Repeat([]byte{1, 2, 3, 4}, 16)}},
				Groups: []kvevents.GroupKind{{DP: n, Group: 1, Main: true}}, Salted: n == 1,
			},
		})
	}
	blocks := func(from, n uint64) piece {
		p := piece{Tier: indexer.Tier(from % 4), Parent: from, HasParent: from > 0, Seed: hashing.Seed}
		if n%2 == 0 {
			p.Seed = n
		}
		for i := range n {
			p.EngineHashes, p.Local = append(p.EngineHashes, from+i+1), append(p.Local, 1<<40+from+i)
		}
		return p
	}
	c.Pieces = [][]piece{{blocks(0, 3), blocks(3, 2), blocks(1, 1)}, nil, {blocks(0, 1000), blocks(1000, 24), blocks(50, 7)}}
	size, endpoint := uint32(16), "http://10.0.0.1:8000"
	c.Workers = []catalog.Record{
		{ID: 1, Scope: sc, BlockSize: &size, Endpoint: &endpoint, KVEventsEndpoints: map[uint32]string{0: "tcp://a:5557", 1: "tcp://a:5558"}},
		{ID: 1<<64 - 1, Scope: sc, Taints: []string{"x"}},
	}
	c.Tracked = []catalog.TrackedRecord{{ID: 9, Scope: catalog.Scope{Model: "m"}, BlockSize: 4, Size: 2}}
	c.Reserved = []reservations.Reservation{
		{Scope: sc, ID: "r-1", Rank: catalog.Rank{Worker: 1}, Hashes: []uint64{5, 1<<64 - 1}, PrefillTokens: 32, TrackPrefill: true, Age: 3 * time.Second},
		{
			Scope: sc, ID: "r-\u00e4", Rank: catalog.Rank{Worker: 1, DP: 2}, PerScope: true, PrefillDone: true, ExpectedOutput: new(uint32(7)),
			Age: time.Minute, Lease: 30 * time.Second, Renewed: 50 * time.Second, Hashes: []uint64{},
		},
	}
	return c
}

// write writes the content; the blocks of different ranks alternate.
func (c *content) write(t testing.TB, w *writer) {
	t.Helper()
	var err error
	do := func(e error) { err = errors.Join(err, e) }
	for i := range c.Workers {
		do(w.Worker(&c.Workers[i]))
	}
	for i := range c.Tracked {
		do(w.Tracked(&c.Tracked[i]))
	}
	for n, r := range c.Ranks {
		number, e := w.Rank(r)
		if do(e); number != n {
			t.Fatalf("rank %d has the number %d", n, number)
		}
	}
	for i := range 3 {
		for n := range c.Ranks {
			p := piece{Seed: 5, EngineHashes: []uint64{1}, Local: []uint64{1}} // of a rank that will be void
			if c.Pieces[n] != nil {
				p = c.Pieces[n][i]
			}
			do(w.Run(n, p.Tier, &indexer.Run{Parent: p.Parent, HasParent: p.HasParent, EngineHashes: p.EngineHashes, Local: p.Local, Seed: p.Seed}))
			if i == 1 {
				do(w.flush(n))
			}
		}
	}
	for n, pieces := range c.Pieces {
		if pieces == nil {
			do(w.flush(n))
			do(w.Void(n))
		}
	}
	for i := range c.Reserved {
		do(w.Reservation(&c.Reserved[i], written))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// read reads all that a file has, as at the time when it was written.
func read(f *file) (c content, err error) {
	for n := range f.Ranks() {
		r, entries, ok := f.Rank(n)
		c.Ranks = append(c.Ranks, *r)
		var pieces []piece
		if ok {
			var held uint64
			err = errors.Join(err, f.Blocks(n, func(p *piece) {
				q := *p
				q.EngineHashes, q.Local = clone(p.EngineHashes), clone(p.Local)
				pieces = append(pieces, q)
				held += uint64(len(p.Local))
			}))
			if held != entries {
				err = errors.Join(err, fmt.Errorf("rank %d has %d entries, not %d", n, held, entries))
			}
		}
		c.Pieces = append(c.Pieces, pieces)
	}
	var e error
	c.Workers, c.Tracked, e = f.Workers()
	err = errors.Join(err, e, f.Reservations(f.Written(), func(r reservations.Reservation) { c.Reserved = append(c.Reserved, r) }))
	return c, err
}

func clone(v []uint64) []uint64 { return append([]uint64(nil), v...) }

// exampleFile writes the example with a fixed identity and returns its bytes.
func exampleFile(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := newWriter(&out, header{written: written, id: [16]byte{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	c := example()
	c.write(t, w)
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	if w.Bytes() != int64(out.Len()) {
		t.Errorf("%d bytes counted, %d written", w.Bytes(), out.Len())
	}
	return out.Bytes()
}

// openBytes opens a file of that content.
func openBytes(t testing.TB, b []byte) (*file, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	return open(in)
}

// TestRoundTrip: what was written is read again.
func TestRoundTrip(t *testing.T) {
	f, err := openBytes(t, exampleFile(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(f)
	if err != nil {
		t.Fatal(err)
	}
	if want := example(); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// TestGolden: files of this version that were written before are read as they were
// meant.
func TestGolden(t *testing.T) {
	const golden = "testdata/snapshot.golden"
	if *rewrite {
		if err := os.WriteFile(golden, exampleFile(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	f, err := openBytes(t, old)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := read(f); err != nil || !reflect.DeepEqual(got, example()) {
		t.Errorf("%v: got\n%+v\nthe format has changed: give it another version, and run with -rewrite", err, got)
	}
}

// TestAge: a reservation is as old as the clock says, but not younger than it was.
func TestAge(t *testing.T) {
	b := encodeReservation(nil, &reservations.Reservation{Age: time.Minute}, written)
	for after, want := range map[time.Duration]time.Duration{
		0: time.Minute, time.Hour: time.Hour + time.Minute, -time.Hour: time.Minute, 1 << 62: maxAge,
	} {
		if r, ok := decodeReservation(b, written.Add(after)); !ok || r.Age != want {
			t.Errorf("%v later: %v, %v, want %v", after, r.Age, ok, want)
		}
	}
}

// TestTooLarge: what does not fit is left out, and the file is good.
func TestTooLarge(t *testing.T) {
	length.Sequential(t)
	var out bytes.Buffer
	w, err := newWriter(&out, header{written: written})
	if err != nil {
		t.Fatal(err)
	}
	long := string(make([]byte, maxSection))
	for what, err := range map[string]error{
		"worker":      w.Worker(&catalog.Record{Endpoint: &long}),
		"reservation": w.Reservation(&reservations.Reservation{Hashes: make([]uint64, maxSection/8)}, written),
	} {
		if !errors.Is(err, errTooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	if f, err := openBytes(t, out.Bytes()); err != nil || f.Ranks() != 0 {
		t.Errorf("the file: %v", err)
	}
}

// TestManyRanks: the blocks that wait to be written stay bounded, whatever their
// ranks.
func TestManyRanks(t *testing.T) {
	length.Sequential(t)
	var out bytes.Buffer
	w, err := newWriter(&out, header{written: written})
	if err != nil {
		t.Fatal(err)
	}
	const ranks, blocks = 2000, 300
	run := indexer.Run{EngineHashes: make([]uint64, blocks), Local: make([]uint64, blocks), Seed: hashing.Seed}
	for i := range run.Local {
		run.EngineHashes[i], run.Local[i] = uint64(i+1), uint64(i)
	}
	for n := range uint32(ranks) {
		if _, err := w.Rank(rankHead{Scope: sc, BlockSize: 1, Rank: catalog.Rank{DP: n}}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range ranks {
		if err := w.Run(n, indexer.Device, &run); err != nil {
			t.Fatal(err)
		}
		if w.buffered >= maxBuffered+chunkBytes {
			t.Fatalf("%d bytes wait", w.buffered)
		}
	}
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	f, err := openBytes(t, out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for n := range f.Ranks() {
		if _, entries, ok := f.Rank(n); !ok || entries != blocks {
			t.Fatalf("rank %d: %d entries", n, entries)
		}
	}
	if perEntry := float64(out.Len()) / (ranks * blocks); perEntry > 31 {
		t.Errorf("%.1f bytes an entry", perEntry)
	}
}
