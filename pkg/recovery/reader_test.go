package recovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestPeerDumps reads dumps of dynamo-kv-router's selection service and
// standalone indexer that were fed with the same events: what they hold is what
// their own /overlap_scores said then.
func TestPeerDumps(t *testing.T) {
	one, fork, other := tokens(1000, 48), append(tokens(1000, 8), tokens(2000, 8)...), tokens(3000, 32)
	want := []struct {
		scope  catalog.Scope
		rank   catalog.Rank
		prompt []uint32
		blocks [3]uint32
	}{
		{catalog.Scope{Model: "m", Tenant: "default"}, catalog.Rank{Worker: 1}, one, [3]uint32{6, 2, 2}},
		{catalog.Scope{Model: "m", Tenant: "default"}, catalog.Rank{Worker: 1, DP: 1}, one, [3]uint32{3, 0, 0}},
		{catalog.Scope{Model: "m", Tenant: "default"}, catalog.Rank{Worker: 2}, one, [3]uint32{3, 2, 0}},
		{catalog.Scope{Model: "m", Tenant: "default"}, catalog.Rank{Worker: 1}, fork, [3]uint32{2, 0, 0}},
		{catalog.Scope{Model: "m", Tenant: "default"}, catalog.Rank{Worker: 2}, fork, [3]uint32{4, 0, 0}},
		{catalog.Scope{Model: "org/m:8b", Tenant: `t "2"`}, catalog.Rank{Worker: 3}, other, [3]uint32{5, 0, 0}},
	}
	for _, file := range peerDumps(t) {
		t.Run(file.name, func(t *testing.T) {
			w, report, err := read(t, file.text)
			if err != nil || report.Incomplete() || report.Scopes != 2 {
				t.Fatalf("%+v, %v", report, err)
			}
			for _, c := range want {
				if got := w.scopes[c.scope].overlap(c.rank, locals(c.prompt)); got != c.blocks {
					t.Errorf("%v in %v: %v, want %v", c.rank, c.scope, got, c.blocks)
				}
			}
		})
	}
}

type peerDump struct{ name, text string }

func peerDumps(t testing.TB) []peerDump {
	t.Helper()
	files, err := filepath.Glob("testdata/*-1.*.json")
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v", files, err)
	}
	var dumps []peerDump
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, peerDump{filepath.Base(f), string(text)})
	}
	return dumps
}

// TestForms: whatever is wrong with a part of a dump, the rest is used and the
// part is counted (decision K8).
func TestForms(t *testing.T) {
	good := stored(1, 0, "device", 0, [2]uint64{11, 1}, [2]uint64{12, 2})
	more := stored(1, 0, "device", 12, [2]uint64{13, 3})
	in := func(event string) string { return dumpOf(good, event, more) }
	entry := func(body string) string {
		return `{"x:y":` + body + `,"m:t":{"block_size":4,"events":[` + good + "," + more + `]}}`
	}
	data := func(body string) string {
		return in(`{"worker_id":1,"storage_tier":"device","event":{"event_id":1,"dp_rank":0,"data":` + body + `}}`)
	}
	blocks := func(body string) string { return data(`{"stored":{"parent_hash":13,"blocks":` + body + `}}`) }
	none := Reason(NumReasons)
	tests := map[string]struct {
		dump    string
		skipped Reason
		n       uint64
		device  uint32 // of the chain 1, 2, 3, … of rank 0 of worker 1
	}{
		"as usual":                {dumpOf(good, more), none, 0, 3},
		"no scope":                {`{}`, none, 0, 0},
		"no events":               {dumpOf(), none, 0, 0},
		"white space":             {" {\n\"m:t\" : {\t\"block_size\" : 4 , \"events\" : [ " + good + " , " + more + " ] } }\r\n", none, 0, 3},
		"an error entry":          {entry(`{"error":"index failed"}`), ErrorEntry, 1, 3},
		"an error and a size":     {entry(`{"block_size":4,"error":{"a":[1]}}`), ErrorEntry, 1, 3},
		"an empty entry":          {entry(`{}`), BadEntry, 1, 3},
		"a number as entry":       {entry(`17`), BadEntry, 1, 3},
		"null as entry":           {entry(`null`), BadEntry, 1, 3},
		"a list as entry":         {entry(`[{"block_size":4}]`), BadEntry, 1, 3},
		"no block size":           {entry(`{"events":[` + good + `]}`), LateBlockSize, 1, 3},
		"block size 0":            {entry(`{"block_size":0,"events":[` + good + `]}`), BadEntry, 1, 3},
		"a block size as text":    {entry(`{"block_size":"4","events":[` + good + `]}`), BadEntry, 1, 3},
		"a huge block size":       {entry(`{"block_size":4294967296,"events":[]}`), BadEntry, 1, 3},
		"events that are none":    {entry(`{"block_size":4,"events":{"a":1}}`), BadEntry, 1, 3},
		"no colon":                {strings.Replace(entry(`{"block_size":4,"events":[`+good+`]}`), "x:y", "xy", 1), BadKey, 1, 3},
		"a key that is too long":  {strings.Replace(entry(`{}`), "x:y", strings.Repeat("x", maxText)+":y", 1), BadKey, 1, 3},
		"a key that is no text":   {strings.Replace(entry(`{}`), "x:y", "\xff:y", 1), BadKey, 1, 3},
		"size behind the events":  {`{"m:t":{"events":[` + good + "," + more + `],"block_size":4}}`, none, 0, 3},
		"unknown keys everywhere": {`{"m:t":{"a":{"events":[[]]},"block_size":4,"b":[],"events":[` + strings.NewReplacer(`{"worker_id"`, `{"c":{},"worker_id"`, `{"event_id"`, `{"d":"\"}","event_id"`, `{"parent_hash"`, `{"e":[1,{}],"parent_hash"`, `{"block_hash"`, `{"f":-1.5e+3,"block_hash"`).Replace(good+","+more) + `],"g":true}}`, none, 0, 3},
		"keys in another order":   {in(`{"event":{"data":{"stored":{"blocks":[{"tokens_hash":4,"block_hash":14}],"parent_hash":12}},"dp_rank":0},"worker_id":1}`), none, 0, 3},
		"escaped names":           {strings.Replace(dumpOf(good, more), `"worker_id"`, "\"worker\\u005fid\"", 1), none, 0, 3},
		"no tier is the device":   {dumpOf(strings.ReplaceAll(good, `"storage_tier":"device",`, ""), strings.Replace(more, `"device"`, "null", 1)), none, 0, 3},
		"no rank is rank 0":       {dumpOf(strings.Replace(good, `,"dp_rank":0`, "", 1), more), none, 0, 3},
		"an unknown tier":         {in(stored(1, 0, "gpu", 0, [2]uint64{13, 9})), UnknownTier, 1, 3},
		"a tier that is no text":  {in(strings.Replace(good, `"device"`, "1", 1)), BadEvent, 1, 3},
		"a long text as tier":     {in(strings.Replace(good, `"device"`, `"`+strings.Repeat(`\\`, defaultWindow)+`"`, 1)), BadEvent, 1, 3},
		"a number as event":       {in(`5`), BadEvent, 1, 3},
		"an empty event":          {in(`{}`), BadEvent, 1, 3},
		"no worker":               {in(strings.Replace(good, `"worker_id":1,`, "", 1)), BadEvent, 1, 3},
		"a negative worker":       {in(strings.Replace(good, `"worker_id":1`, `"worker_id":-1`, 1)), BadEvent, 1, 3},
		"a worker as text":        {in(strings.Replace(good, `"worker_id":1`, `"worker_id":"1"`, 1)), BadEvent, 1, 3},
		"a rank of 33 bits":       {in(strings.Replace(good, `"dp_rank":0`, `"dp_rank":4294967296`, 1)), BadEvent, 1, 3},
		"a rank with a fraction":  {in(strings.Replace(good, `"dp_rank":0`, `"dp_rank":0.0`, 1)), BadEvent, 1, 3},
		"no body":                 {in(`{"worker_id":1,"event":7}`), BadEvent, 1, 3},
		"no data":                 {in(`{"worker_id":1,"event":{}}`), BadEvent, 1, 3},
		"unknown data":            {data(`{"moved":{}}`), BadEvent, 1, 3},
		"unknown text as data":    {data(`"moved"`), BadEvent, 1, 3},
		"null data":               {data(`null`), BadEvent, 1, 3},
		"two kinds of data":       {data(`{"cleared":{},"removed":{"block_hashes":[11]}}`), BadEvent, 1, 3},
		"no blocks":               {data(`{"stored":{"parent_hash":null}}`), BadEvent, 1, 3},
		"empty blocks":            {blocks(`[]`), none, 0, 3},
		"blocks that are none":    {blocks(`{}`), BadEvent, 1, 3},
		"stored that is a list":   {data(`{"stored":[]}`), BadEvent, 1, 3},
		"a block without name":    {blocks(`[{"tokens_hash":4}]`), BadEvent, 1, 3},
		"a block without hash":    {blocks(`[{"block_hash":4}]`), BadEvent, 1, 3},
		"a block that is none":    {blocks(`[[]]`), BadEvent, 1, 3},
		"a bad block in between":  {blocks(`[{"block_hash":14,"tokens_hash":4},{"block_hash":1.5,"tokens_hash":4},{"block_hash":15,"tokens_hash":5}]`), BadEvent, 1, 3},
		"a hash of 65 bits":       {blocks(`[{"block_hash":18446744073709551616,"tokens_hash":4,"mm_extra_info":null}]`), BadEvent, 1, 3},
		"a bad parent":            {data(`{"stored":{"parent_hash":"11","blocks":[{"block_hash":14,"tokens_hash":4}]}}`), BadEvent, 1, 3},
		"a bad seed":              {data(`{"stored":{"parent_hash":12,"seed":-1,"blocks":[{"block_hash":14,"tokens_hash":4}]}}`), BadEvent, 1, 3},
		"a block twice":           {in(stored(1, 0, "device", 0, [2]uint64{14, 1}, [2]uint64{15, 2}, [2]uint64{14, 3})), RepeatedHash, 1, 3},
		"its own parent":          {in(stored(1, 0, "device", 12, [2]uint64{12, 3})), RepeatedHash, 1, 3},
		"an unknown parent":       {in(stored(1, 0, "device", 99, [2]uint64{100, 3}, [2]uint64{101, 4})), MissingParent, 2, 3},
		"children first":          {dumpOf(more, good), none, 0, 3},
		"no place for a rank":     {in(stored(noSlot, 0, "device", 0, [2]uint64{1, 1})), NoSlot, 1, 3},
		"removed":                 {data(`{"removed":{"block_hashes":[12,99]}}`), MissingParent, 1, 1},
		"removed, nothing":        {data(`{"removed":{}}`), BadEvent, 1, 3},
		"removed, no list":        {data(`{"removed":{"block_hashes":7}}`), BadEvent, 1, 3},
		"removed, no hash":        {data(`{"removed":{"block_hashes":[12,null]}}`), BadEvent, 1, 3},
		"removed while it waits":  {dumpOf(more, `{"worker_id":1,"event":{"data":{"removed":{"block_hashes":[13]}}}}`, good), none, 0, 2},
		"cleared while it waits":  {dumpOf(more, `{"worker_id":1,"event":{"data":"cleared"}}`, good), none, 0, 2},
		"stored again":            {dumpOf(more, `{"worker_id":1,"event":{"data":"cleared"}}`, more, good), none, 0, 3},
		"cleared":                 {dumpOf(good, more, `{"worker_id":1,"event":{"data":"cleared"}}`), none, 0, 0},
		"cleared as an object":    {dumpOf(good, more, `{"worker_id":1,"event":{"data":{"cleared":null}}}`), none, 0, 0},
		"an event of 17 MiB":      {in(strings.Replace(good, `"event_id":0`, `"event_id":"`+strings.Repeat("0", 17<<20)+`"`, 1)), TooLarge, 1, 3},
		"blocks of 17 MiB":        {blocks(`[` + strings.Repeat(`{"block_hash":14,"tokens_hash":4,"mm_extra_info":null}`+strings.Repeat(" ", 1000)+",", 17<<10) + `{"block_hash":14,"tokens_hash":4}]`), TooLarge, 1, 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, report, err := read(t, tc.dump)
			if err != nil || report.EndedEarly {
				t.Fatalf("%+v, %v", report, err)
			}
			var want [NumReasons]uint64
			if tc.skipped != none {
				want[tc.skipped] = tc.n
			}
			if report.Skipped != want {
				t.Errorf("skipped %v, want %d of %v", report.Skipped, tc.n, tc.skipped)
			}
			if got := report.Incomplete(); got != (want != [NumReasons]uint64{} && tc.skipped < NoSlot) {
				t.Errorf("incomplete: %v", got)
			}
			device := uint32(0)
			if s := w.scopes[mt]; s != nil {
				device = s.overlap(catalog.Rank{Worker: 1}, []uint64{1, 2, 3, 4, 5, 6})[0]
			}
			if device != tc.device {
				t.Errorf("%d blocks, want %d", device, tc.device)
			}
		})
	}
}

// TestHashes: all 64 bits, signed or unsigned, count.
func TestHashes(t *testing.T) {
	dump := dumpOf(
		stored(1, 0, "device", 0, [2]uint64{maxHash, maxHash}),
		`{"worker_id":18446744073709551615,"event":{"dp_rank":4294967295,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":-1,"tokens_hash":-1}]}}}}`,
		`{"worker_id":1,"event":{"data":{"stored":{"parent_hash":-1,"blocks":[{"block_hash":9223372036854775808,"tokens_hash":-9223372036854775808}]}}}}`,
	)
	w, report, err := read(t, dump)
	if err != nil || report.Incomplete() {
		t.Fatalf("%+v, %v", report, err)
	}
	for r, want := range map[catalog.Rank]uint32{{Worker: 1}: 2, {Worker: maxHash, DP: 1<<32 - 1}: 1} {
		if got := w.scopes[mt].overlap(r, []uint64{maxHash, 1 << 63})[0]; got != want {
			t.Errorf("%v has %d blocks, want %d", r, got, want)
		}
	}
}

// TestSeeds: a stated block seed is the block's, and that of what comes behind.
func TestSeeds(t *testing.T) {
	w, report, err := read(t, dumpOf(
		`{"worker_id":1,"event":{"data":{"stored":{"parent_hash":null,"seed":77,"blocks":[{"block_hash":11,"tokens_hash":1}]}}}}`,
		stored(1, 0, "device", 11, [2]uint64{12, 2}),
		`{"worker_id":1,"event":{"data":{"stored":{"parent_hash":22,"blocks":[{"block_hash":23,"tokens_hash":23}],"seed":88}}}}`,
		stored(1, 0, "device", 0, [2]uint64{21, 21}, [2]uint64{22, 22}),
	))
	if err != nil || report.Incomplete() {
		t.Fatalf("%+v, %v", report, err)
	}
	for name, want := range map[uint64]uint64{11: 77, 12: 77, 22: 1337, 23: 88} {
		if seed, ok := w.scopes[mt].space.ParentSeed(0, name); !ok || seed != want {
			t.Errorf("block %d has seed %d, want %d", name, seed, want)
		}
	}
}

// TestOtherBlockSize: blocks that are cut otherwise cannot be compared.
func TestOtherBlockSize(t *testing.T) {
	w := newWorld()
	w.sizes[mt] = 16
	for _, dump := range []string{dumpOf(stored(1, 0, "device", 0, [2]uint64{11, 1})), `{"m:t":{"events":[],"block_size":4}}`} {
		report, err := Read(context.Background(), strings.NewReader(dump), w, Options{})
		if err != nil || report.Skipped[OtherBlockSize] != 1 || report.Events != 0 || !report.Incomplete() {
			t.Errorf("%+v, %v", report, err)
		}
	}
}

// TestLateBlockSize: events that come before their block size are used as long
// as they fit into the window.
func TestLateBlockSize(t *testing.T) {
	long := func(n int) string {
		events := make([]string, n)
		for i := range events {
			events[i] = stored(uint64(i)+1000, 0, "device", 0, [2]uint64{11, 1})
		}
		return `{"a:b":{"block_size":4,"events":[]},"m:t":{"events":[` + strings.Join(events, ",") + `],"block_size":4}}`
	}
	if w, report, err := read(t, long(1000)); err != nil || report.Incomplete() || report.Blocks != 1000 || len(w.scopes[mt].slots) != 1000 {
		t.Errorf("in the window: %+v, %v", report, err)
	}
	if _, report, err := read(t, long(4000)); err != nil || report.Skipped[LateBlockSize] != 1 || report.Events != 0 {
		t.Errorf("beyond the window: %+v, %v", report, err)
	}
}

// TestBrokenDumps: where a dump is no JSON, or no dump, reading ends; what came
// before stays.
func TestBrokenDumps(t *testing.T) {
	good := dumpOf(stored(1, 0, "device", 0, [2]uint64{11, 1}))
	for name, dump := range map[string]string{
		"a list": `[]`, "HTML": "<html>", "empty": "", "null": "null",
		"something behind": good + "x", "a second one": good + good, "a NUL behind": good + "\x00",
		"no comma":                strings.Replace(good, `4,"events"`, `4 "events"`, 1),
		"no colon":                strings.Replace(good, `"block_size":`, `"block_size"`, 1),
		"a wrong bracket":         `{"a:b":{"c":[}]}}`,
		"a bracket too many":      `{"a:b":{"c":1]}}`,
		"an open string":          `{"a:b`,
		"a newline in a string":   "{\"a\n:b\":1}",
		"a name that is no text":  `{1:2}`,
		"nothing but a minus":     `{"a:b":{"block_size":-}}`,
		"nested without an end":   `{"a:b":{"c":` + strings.Repeat("[", 1<<20),
		"nested very deep":        `{"a:b":{"c":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`,
		"a literal in upper case": `{"a:b":{"c":NULL}}`,
	} {
		_, report, err := read(t, dump)
		if err == nil || !report.EndedEarly || !report.Incomplete() {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
		if want := uint64(strings.Count(name, "behind") + strings.Count(name, "second")); report.Blocks != want {
			t.Errorf("%s: %d blocks, want %d", name, report.Blocks, want)
		}
	}
}

// TestCutDumps cuts dumps at many places, and hands them over in any pieces and
// through a window that is just large enough: nothing is lost that was there.
func TestCutDumps(t *testing.T) {
	ctx := context.Background()
	for i, file := range peerDumps(t) {
		_, whole, err := read(t, file.text)
		if err != nil {
			t.Fatal(err)
		}
		for _, window := range []int{200, 257, 1024} {
			for name, in := range map[string]io.Reader{
				"byte by byte": iotest.OneByteReader(strings.NewReader(file.text)),
				"in halves":    iotest.HalfReader(strings.NewReader(file.text)),
				"with its end": iotest.DataErrReader(strings.NewReader(file.text)),
			} {
				if report, err := Read(ctx, in, newWorld(), Options{window: window}); err != nil || report != whole {
					t.Errorf("%s %s, window %d: %+v, %v", file.name, name, window, report, err)
				}
			}
		}
		last := uint64(0)
		for n := 0; n < len(file.text); n += 3 + 20*min(i, 1) {
			_, report, err := read(t, file.text[:n])
			if !errors.Is(err, io.ErrUnexpectedEOF) || !report.EndedEarly {
				t.Fatalf("%s cut at %d: %+v, %v", file.name, n, report, err)
			}
			if report.Blocks < last || report.Blocks > whole.Blocks || report.Faults() > report.Skipped[MissingParent] {
				t.Fatalf("%s cut at %d: %d blocks after %d, faults %v", file.name, n, report.Blocks, last, report.Skipped)
			}
			last = report.Blocks
		}
		if _, all, _ := read(t, file.text[:len(file.text)-1]); all.Blocks != whole.Blocks {
			t.Errorf("%s without its last byte has %d blocks of %d", file.name, all.Blocks, whole.Blocks)
		}
	}
}

// TestReadErrors: an error of the stream, and the end of the caller, end a read.
func TestReadErrors(t *testing.T) {
	text := peerDumps(t)[0].text
	in := io.MultiReader(strings.NewReader(text[:3000]), iotest.ErrReader(io.ErrClosedPipe))
	if report, err := Read(context.Background(), in, newWorld(), Options{}); !errors.Is(err, io.ErrClosedPipe) || report.Blocks == 0 {
		t.Errorf("broken stream: %+v, %v", report, err)
	}
	if _, err := Read(context.Background(), stuck{}, newWorld(), Options{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("stuck stream: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, strings.NewReader(text), newWorld(), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// TestWaitingIsBounded: the number of blocks that wait for their parent is bounded,
// and those for which there is no room are counted.
func TestWaitingIsBounded(t *testing.T) {
	var events []string
	for i := uint64(100); i > 1; i-- { // children first
		events = append(events, stored(1, 0, "host_pinned", i-1, [2]uint64{i, i}))
	}
	events = append(events, stored(1, 0, "host_pinned", 0, [2]uint64{1, 1}))
	w := newWorld()
	report, err := Read(context.Background(), strings.NewReader(dumpOf(events...)), w, Options{MaxOrphans: 99})
	if err != nil || report.Incomplete() || report.Blocks != 100 {
		t.Errorf("with room for all: %+v, %v", report, err)
	}
	report, err = Read(context.Background(), strings.NewReader(dumpOf(events...)), newWorld(), Options{MaxOrphans: 60})
	// 100 … 41 wait, 40 … 2 do not; then 1 comes alone.
	if err != nil || report.Skipped[NoRoom] != 39 || report.Skipped[MissingParent] != 60 || report.Blocks != 1 {
		t.Errorf("with room for some: %+v, %v", report, err)
	}
}

// TestProgress proves that Options.Progress is called while a dump is read.
func TestProgress(t *testing.T) {
	var events []string
	for i := range uint64(3 * progressEvery / 2) {
		events = append(events, stored(i, 0, "device", 0, [2]uint64{1, 1}))
	}
	var seen []uint64
	_, err := Read(context.Background(), strings.NewReader(dumpOf(events...)), newWorld(),
		Options{Progress: func(r *Report) { seen = append(seen, r.Events) }})
	if err != nil || len(seen) != 1 || seen[0] != progressEvery {
		t.Errorf("told at %v, %v", seen, err)
	}
}

func FuzzRead(f *testing.F) {
	for _, file := range peerDumps(f) {
		f.Add([]byte(file.text), uint16(300))
	}
	f.Add([]byte(`{"a:b":{"events":[{"worker_id":1,"event":{"data":"cleared"}}],"block_size":1,"error":"\u00e9"}}`), uint16(200))
	f.Fuzz(func(t *testing.T, dump []byte, window uint16) {
		size := 200 + int(window)%4096
		w := newWorld()
		report, err := Read(context.Background(), bytes.NewReader(dump), w, Options{window: size, MaxOrphans: 50})
		if report.EndedEarly != (err != nil) {
			t.Errorf("%+v, %v", report, err)
		}
		held := 0
		for _, s := range w.scopes {
			for _, n := range s.space.Stats().Blocks {
				held += n
			}
		}
		if uint64(held) > report.Blocks {
			t.Errorf("%d blocks are held, %d were reported", held, report.Blocks)
		}
	})
}

// BenchmarkRead reads a dump of 100,000 blocks in events of 64; the index has
// them already, so that its work is as small as it can be.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{1, 64} {
		b.Run(fmt.Sprintf("blocks=%d", size), func(b *testing.B) {
			var events []string
			h := uint64(1)
			for range 100_000 / size {
				var blocks [][2]uint64
				for range size {
					h = h*6364136223846793005 + 1442695040888963407
					blocks = append(blocks, [2]uint64{h, h * 3})
				}
				events = append(events, stored(1, 0, "device", 0, blocks...))
			}
			dump := dumpOf(events...)
			for name, target := range map[string]Target{"index=real": newWorld(), "index=none": deaf{NewGate(indexer.New(), false)}} {
				b.Run(name, func(b *testing.B) {
					b.SetBytes(int64(len(dump)))
					b.ReportAllocs()
					for b.Loop() {
						if _, err := Read(context.Background(), strings.NewReader(dump), target, Options{}); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// deaf is a target that takes nothing.
type deaf struct{ gate *Gate }

func (d deaf) Fits(catalog.Scope, uint32) bool { return true }
func (d deaf) ShowKeys(catalog.Scope)          {}
func (d deaf) Place(catalog.Scope, uint32, catalog.Rank) (*Gate, uint32, bool) {
	return d.gate, 0, true
}
