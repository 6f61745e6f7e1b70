package httpapi

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
)

// queryText is a body with a list of n numbers.
func queryText(list string, n int, number func(*rand.Rand) uint64) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := []byte(`{"model":"deepseek","tenant_id":"default","block_size":64,"` + list + `":[`)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, number(rnd), 10)
	}
	return append(b, "]}"...)
}

func someToken(rnd *rand.Rand) uint64 { return rnd.Uint64N(128000) }

// answering fills every answer with the same instances.
type answering struct {
	ConductorAPI
	answer conductor.Answer
}

func (an answering) Query(_ *conductor.Query, a *conductor.Answer) error {
	a.Media = append(a.Media[:0], an.answer.Media...)
	a.Instances = append(a.Instances[:0], an.answer.Instances...)
	return nil
}

// BenchmarkConductorQueryHandler is /query and /query_by_hash over 64 instances
// without the network and the index.
func BenchmarkConductorQueryHandler(b *testing.B) {
	s := answering{answer: conductor.Answer{Media: naturalMedia}}
	for i := range 64 {
		s.answer.Instances = append(s.answer.Instances, conductor.InstanceMatch{
			Instance: "vllm-prefill-node" + strconv.Itoa(i), Longest: 8192, Media: []uint64{4096, 8192, 0}, Ranks: []conductor.RankMatch{{Rank: 0, Tokens: 8192}},
		})
	}
	h := NewConductor(s, Options{Log: zerolog.Nop()})
	for _, bc := range []struct {
		name, path string
		text       []byte
	}{
		{"tokens=8192", "/query", queryText("token_ids", 8192, someToken)},
		{"tokens=65536", "/query", queryText("token_ids", 65536, someToken)},
		{"hashes=128", "/query_by_hash", queryText("seq_hashes", 128, (*rand.Rand).Uint64)},
		{"hashes=1024", "/query_by_hash", queryText("seq_hashes", 1024, (*rand.Rand).Uint64)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			benchmarkHandler(b, h, bc.path, "application/json", bc.text)
		})
	}
}
