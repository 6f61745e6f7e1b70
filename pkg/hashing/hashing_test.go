package hashing_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/zeebo/xxh3"

	"github.com/select-service/select-service/pkg/hashing"
)

// u64 is a 64-bit value in the data files: a decimal string, signed or not.
type u64 uint64

func (u *u64) UnmarshalText(b []byte) error {
	if s := string(b); s[0] == '-' {
		v, err := strconv.ParseInt(s, 10, 64)
		*u = u64(v)
		return err
	}
	v, err := strconv.ParseUint(string(b), 10, 64)
	*u = u64(v)
	return err
}

func plain(in []u64) []uint64 {
	out := make([]uint64, len(in))
	for i, v := range in {
		out[i] = uint64(v)
	}
	return out
}

type vector struct {
	Name      string           `json:"name"`
	BlockSize int              `json:"block_size"`
	Tokens    []uint32         `json:"token_ids"`
	Blocks    int              `json:"n_blocks"`
	Seed      *u64             `json:"seed"` // of the chain; absent: the default
	LocalSeed u64              `json:"local_seed"`
	Local     []u64            `json:"local"`
	Sequence  []u64            `json:"sequence"`
	Signed    []u64            `json:"sequence_i64"`
	LoRA      string           `json:"lora_name"`
	Salt      string           `json:"cache_salt"`
	MM        map[string][]u64 `json:"mm_hashes_per_block"`
	Eagle     bool             `json:"eagle"`
}

type vectors struct {
	Vectors   []vector `json:"vectors"`
	LoRASeeds []struct {
		LoRA string `json:"lora_name"`
		Seed u64    `json:"local_seed"`
	} `json:"lora_seed"`
	Namespaces struct {
		Cases []vector `json:"cases"`
	} `json:"namespace_rule_1_6_1"`
	OldConductor struct {
		Cases []struct {
			Salt      string   `json:"salt"`
			Tokens    []uint32 `json:"tokens"`
			BlockSize int      `json:"block_size"`
			Hashes    []u64    `json:"hashes"`
		} `json:"cases"`
	} `json:"old_go_conductor_rule"`
	Projection struct {
		Cases []struct {
			SHA256 string `json:"sha256_hex"`
			Low64  u64    `json:"low64_be"`
			Signed u64    `json:"low64_as_i64"`
		} `json:"cases"`
	} `json:"bytes_hash_projection"`
}

// same compares two hash lists; nil and empty are equal.
func same(t *testing.T, what string, got []uint64, want []u64) {
	t.Helper()
	if diff := cmp.Diff(plain(want), got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func load(t *testing.T) vectors {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/hash_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) != 54 {
		t.Fatalf("%d vectors, want 54", len(v.Vectors))
	}
	return v
}

func (v *vector) objects(t *testing.T) [][]uint64 {
	t.Helper()
	if v.MM == nil {
		return nil
	}
	mm := make([][]uint64, v.Blocks)
	for key, hashes := range v.MM {
		i, err := strconv.Atoi(key)
		if err != nil {
			t.Fatal(err)
		}
		mm[i] = plain(hashes)
	}
	return mm
}

// TestVectors proves the local and the rolling hash equal to the values that
// the running peer computed, for every block size, eagle windows, multimodal
// objects, LoRA adapters and salts.
func TestVectors(t *testing.T) {
	file := load(t)
	for _, v := range append(file.Vectors, file.Namespaces.Cases...) {
		name := v.Name
		if name == "" {
			name = "namespace_" + v.Salt + "_" + v.LoRA
		}
		t.Run(name, func(t *testing.T) {
			chain := hashing.Seed
			if v.Seed != nil {
				chain = uint64(*v.Seed)
			}
			seed := hashing.LocalSeed(v.LoRA, v.Salt) - hashing.Seed + chain
			if seed != uint64(v.LocalSeed) {
				t.Errorf("LocalSeed = %d, want %d", seed, uint64(v.LocalSeed))
			}
			layout := hashing.Layout{BlockSize: v.BlockSize, Eagle: v.Eagle}
			if got := layout.Blocks(len(v.Tokens)); got != len(v.Local) {
				t.Errorf("Blocks(%d) = %d, want %d", len(v.Tokens), got, len(v.Local))
			}
			local := layout.AppendLocal(nil, v.Tokens, seed, v.objects(t))
			same(t, "local", local, v.Local)
			seq := hashing.AppendSequenceSeed(nil, local, chain)
			same(t, "sequence", seq, v.Sequence)
			if v.Signed != nil {
				same(t, "sequence against the signed form", seq, v.Signed)
			}
		})
	}
}

func TestLocalSeed(t *testing.T) {
	for _, c := range load(t).LoRASeeds {
		if got := hashing.LocalSeed(c.LoRA, ""); got != uint64(c.Seed) {
			t.Errorf("LocalSeed(%q) = %d, want %d", c.LoRA, got, uint64(c.Seed))
		}
	}
}

// TestOldConductorRule pins the rule that Mooncake's Go Conductor follows
// instead of the standard, and so that our library gives the hashes that its
// vectors were made with.
func TestOldConductorRule(t *testing.T) {
	for _, c := range load(t).OldConductor.Cases {
		parent := xxhash.Sum64String(c.Salt)
		if c.Salt == "" {
			parent = xxhash.Sum64(nil)
		}
		var got []uint64
		for i := 0; i+c.BlockSize <= len(c.Tokens); i += c.BlockSize {
			buf := binary.LittleEndian.AppendUint64(nil, parent)
			for _, tok := range c.Tokens[i : i+c.BlockSize] {
				buf = binary.LittleEndian.AppendUint32(buf, tok)
			}
			parent = xxhash.Sum64(buf)
			got = append(got, parent)
		}
		same(t, "salt "+strconv.Quote(c.Salt), got, c.Hashes)
	}
}

// TestByteHashProjection pins the vectors' rule for hashes that are byte
// strings: the last 8 bytes, big endian.
func TestByteHashProjection(t *testing.T) {
	for _, c := range load(t).Projection.Cases {
		raw, err := hex.DecodeString(c.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint64(raw[len(raw)-8:]); got != uint64(c.Low64) || got != uint64(c.Signed) {
			t.Errorf("%s: %d, want %d", c.SHA256, got, uint64(c.Low64))
		}
	}
}

// TestBlocks shows where blocks end: only complete ones count, an eagle block
// needs its look-ahead token, and nonsense sizes make none.
func TestBlocks(t *testing.T) {
	tests := []struct {
		layout hashing.Layout
		tokens int
		want   int
	}{
		{hashing.Layout{BlockSize: 4}, 0, 0},
		{hashing.Layout{BlockSize: 4}, 3, 0},
		{hashing.Layout{BlockSize: 4}, 8, 2},
		{hashing.Layout{BlockSize: 4}, 11, 2},
		{hashing.Layout{BlockSize: 4, Eagle: true}, 0, 0},
		{hashing.Layout{BlockSize: 4, Eagle: true}, 4, 0},
		{hashing.Layout{BlockSize: 4, Eagle: true}, 5, 1},
		{hashing.Layout{BlockSize: 4, Eagle: true}, 8, 1},
		{hashing.Layout{BlockSize: 0}, 8, 0},
		{hashing.Layout{BlockSize: -1}, 8, 0},
	}
	for _, tc := range tests {
		if got := tc.layout.Blocks(tc.tokens); got != tc.want {
			t.Errorf("%+v.Blocks(%d) = %d, want %d", tc.layout, tc.tokens, got, tc.want)
		}
	}
}

// TestAppendLocalManyObjects shows that a block with more objects than the
// stack buffers hold hashes like any other, in any order of the objects.
func TestAppendLocalManyObjects(t *testing.T) {
	layout, tokens := hashing.Layout{BlockSize: 2}, []uint32{1, 2}
	up, down := make([]uint64, 200), make([]uint64, 200)
	for i := range up {
		up[i], down[199-i] = uint64(i), uint64(i)
	}
	a := layout.AppendLocal(nil, tokens, hashing.Seed, [][]uint64{up})
	b := layout.AppendLocal(nil, tokens, hashing.Seed, [][]uint64{down})
	if a[0] != b[0] {
		t.Errorf("order of objects changes the hash: %d, %d", a[0], b[0])
	}
	if down[0] != 199 {
		t.Error("AppendLocal sorted the caller's slice")
	}
}

// TestUnmatched shows that the replaced hash depends on both parts and is not
// the rolling hash of them.
func TestUnmatched(t *testing.T) {
	h := hashing.Unmatched(1, 2)
	for name, other := range map[string]uint64{
		"local":    1,
		"rolling":  hashing.NextSequence(1, 2),
		"local'":   hashing.Unmatched(3, 2),
		"digest'":  hashing.Unmatched(1, 3),
		"reversed": hashing.Unmatched(2, 1),
	} {
		if h == other {
			t.Errorf("Unmatched(1, 2) equals %s", name)
		}
	}
}

// TestPairs: the hash of a chain's next block is XXH3 of 16 bytes, as the library has it, for any
// numbers and seed.
func TestPairs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	edges := []uint64{0, 1, hashing.Seed, 1 << 63, math.MaxUint64}
	word := func() uint64 {
		if i := rnd.IntN(10); i < len(edges) {
			return edges[i]
		}
		return rnd.Uint64()
	}
	for range 10_000 {
		a, b, seed := word(), word(), word()
		want := xxh3.HashSeed(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, a), b), seed)
		if got := hashing.AppendSequenceSeed(nil, []uint64{a, b}, seed)[1]; got != want {
			t.Fatalf("(%#x, %#x) with seed %#x: %#x, want %#x", a, b, seed, got, want)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	layout := hashing.Layout{BlockSize: 16}
	tokens, local, seq := make([]uint32, 1024), make([]uint64, 0, 64), make([]uint64, 0, 64)
	mm := [][]uint64{{3, 2, 1}}
	if n := testing.AllocsPerRun(100, func() {
		local = layout.AppendLocal(local[:0], tokens, hashing.Seed, mm)
		seq = hashing.AppendSequence(seq[:0], local)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkAppendLocal(b *testing.B) {
	for _, size := range []int{16, 64} {
		b.Run("block="+strconv.Itoa(size), func(b *testing.B) {
			layout, tokens := hashing.Layout{BlockSize: size}, make([]uint32, 128*size)
			var local []uint64
			b.ReportAllocs()
			for b.Loop() {
				local = layout.AppendLocal(local[:0], tokens, hashing.Seed, nil)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*128), "ns/block")
		})
	}
}

func BenchmarkAppendSequence(b *testing.B) {
	local := make([]uint64, 128)
	var seq []uint64
	b.ReportAllocs()
	for b.Loop() {
		seq = hashing.AppendSequence(seq[:0], local)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*128), "ns/block")
}
