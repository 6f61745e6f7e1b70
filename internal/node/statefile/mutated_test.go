package statefile

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/container/hashset"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/test/helpers/length"
)

// mutate damages a file. Some of the ways keep its sections whole, or their checksums
// right: then only their order, or what they say of each other, is wrong.
func mutate(rnd *rand.Rand, b []byte) []byte {
	b = append([]byte(nil), b...)
	at := func() int { return rnd.IntN(len(b)) }
	for range 1 + rnd.IntN(3) {
		switch rnd.IntN(10) {
		case 0:
			b[at()] ^= 1 << rnd.IntN(8)
		case 1:
			b[at()] = byte(rnd.Uint32())
		case 2:
			b = b[:1+at()]
		case 3: // two ranges change places
			n := 1 + rnd.IntN(min(200, len(b)))
			i, j := rnd.IntN(len(b)-n+1), rnd.IntN(len(b)-n+1)
			part := append([]byte(nil), b[i:i+n]...)
			copy(b[i:i+n], b[j:j+n])
			copy(b[j:j+n], part)
		case 4: // a part is missing, or there twice
			i := at()
			j := min(len(b), i+1+rnd.IntN(100))
			if rnd.IntN(2) == 0 {
				b = append(b[:i:i], b[j:]...)
			} else {
				b = append(b[:j:j], b[i:]...)
			}
		case 5:
			b = append(b, byte(rnd.Uint32()))
		default: // a section: another kind, number or length, other bytes, another's place
			b = mutateSection(rnd, b)
		}
		if len(b) == 0 {
			b = []byte{0}
		}
	}
	return b
}

// sectionsOf finds the sections of a file, as far as they can be followed.
func sectionsOf(b []byte) (at []int) {
	for i := headerBytes; i+headBytes <= len(b); {
		at = append(at, i)
		n := int(binary.LittleEndian.Uint32(b[i+8:]))
		if n > len(b) {
			break
		}
		i += headBytes + n
	}
	return at
}

func mutateSection(rnd *rand.Rand, b []byte) []byte {
	at := sectionsOf(b)
	if len(at) < 2 {
		return b
	}
	i := rnd.IntN(len(at) - 1)
	s := b[at[i]:at[i+1]]
	switch rnd.IntN(5) {
	case 0:
		s[0] = byte(rnd.IntN(10))
	case 1:
		binary.LittleEndian.PutUint32(s[4:], rnd.Uint32N(8))
	case 2:
		if len(s) > headBytes {
			s[headBytes+rnd.IntN(min(12, len(s)-headBytes))] ^= byte(1 + rnd.IntN(255)) // often the rank's number
		}
	case 3:
		if len(s) > headBytes {
			s[headBytes+rnd.IntN(len(s)-headBytes)] ^= 1 << rnd.IntN(8)
		}
	default: // two neighbours change places
		if i+2 < len(at) {
			next := b[at[i+1]:at[i+2]]
			swapped := append(append([]byte(nil), next...), s...)
			copy(b[at[i]:], swapped)
			if rnd.IntN(2) == 0 { // and have the right numbers again
				binary.LittleEndian.PutUint32(b[at[i]+4:], uint32(i))
				binary.LittleEndian.PutUint32(b[at[i]+len(next)+4:], uint32(i+1))
			}
		}
	}
	if rnd.IntN(3) > 0 {
		seal(b, false)
	}
	return b
}

// seal makes the checksums right: those of the header and all sections, and with all
// also the digest in the end section.
func seal(b []byte, all bool) {
	if len(b) < headerBytes {
		return
	}
	binary.LittleEndian.PutUint32(b[headerBytes-4:], crc32.Checksum(b[:headerBytes-4], castagnoli))
	var h header
	h.written = time.Unix(0, int64(binary.LittleEndian.Uint64(b[28:])))
	copy(h.id[:], b[36:])
	sum := digest(&h)
	for _, i := range sectionsOf(b) {
		s := parseHead(b[i:])
		if i+headBytes+int(s.length) > len(b) {
			return
		}
		payload := b[i+headBytes : i+headBytes+int(s.length)]
		if all && s.kind == endKind && len(payload) == 32 {
			copy(payload, sum.Sum(nil))
		}
		s.crc = s.checksum(h.id, payload)
		binary.LittleEndian.PutUint32(b[i+12:], s.crc)
		sum.Write(s.bytes())
	}
}

// TestMutated: of 10,000 damaged files each is refused, or has what was written.
func TestMutated(t *testing.T) {
	files := length.Of(10_000, 1000, 250)
	good, want := exampleFile(t), example()
	dir := t.TempDir()
	reasons := make(map[Reason]int)
	for seed := range uint64(files) {
		rnd := rand.New(rand.NewPCG(seed, 15))
		b := mutate(rnd, good)
		f, err := openAt(t, dir, b)
		var refused *RefusedError
		switch {
		case errors.As(err, &refused):
			reasons[refused.Reason]++
			continue
		case err != nil:
			t.Fatalf("seed %d: %v", seed, err)
		}
		got, err := read(f)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: a damaged file was taken: %v\n%+v", seed, err, got)
		}
		f.Close()
	}
	for _, why := range []Reason{Foreign, Cut, Corrupt} {
		if reasons[why] == 0 {
			t.Errorf("none was refused as %s: %v", why, reasons)
		}
	}
}

// openAt opens a file of that content in a directory.
func openAt(t testing.TB, dir string, b []byte) (*file, error) {
	t.Helper()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := open(in)
	if err != nil {
		in.Close()
	}
	return f, err
}

// use does with a file what the service does with it: what it has may be anything.
func use(f *file) {
	ledger := reservations.New(1, time.Now, nil)
	_ = f.Reservations(time.Now(), func(r reservations.Reservation) {
		ledger.PutRank(r.Scope, 0, r.Rank)
		ledger.Restore(r)
	})
	ledger.Expire()
	_, _, _ = f.Workers()
	space := indexer.New()
	var seen hashset.Set
	for n := range f.Ranks() {
		if _, _, ok := f.Rank(n); !ok {
			continue
		}
		_ = f.Blocks(n, func(p *piece) {
			if !seen.ChainRepeats(p.Parent, p.HasParent, p.EngineHashes) {
				ev := p.Store(uint32(n))
				space.Store(&ev)
			}
		})
	}
	for n := range f.Ranks() {
		space.Forget(uint32(n))
	}
}

// TestForged: files that say anything under right checksums never crash.
func TestForged(t *testing.T) {
	files := length.Of(4000, 500, 100)
	good := exampleFile(t)
	dir := t.TempDir()
	taken := 0
	for seed := range uint64(files) {
		b := mutate(rand.New(rand.NewPCG(seed, 16)), good)
		seal(b, true)
		if f, err := openAt(t, dir, b); err == nil {
			taken++
			use(f)
			f.Close()
		}
	}
	if taken < files/20 {
		t.Errorf("only %d of %d were taken", taken, files)
	}
}

// FuzzFile: any bytes are a file or refused.
func FuzzFile(f *testing.F) {
	f.Add(exampleFile(f), true)
	f.Add([]byte(magic), false)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed {
			seal(b, true)
		}
		if file, err := openAt(t, dir, b); err == nil {
			use(file)
			file.Close()
		}
	})
}
