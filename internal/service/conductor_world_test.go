package service_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/hashing"
)

// identity is the one that publishers and queries have unless a test says
// otherwise: the usual scope's.
var identity = conductor.Identity{Tenant: scope.Tenant, Model: scope.Model, BlockSize: blockSize}

// registration is a vLLM publisher of one rank with an endpoint of its own.
func registration(instance string, rank uint32, change ...func(*conductor.Registration)) conductor.Registration {
	r := conductor.Registration{
		Type: conductor.VLLM, Identity: identity, Instance: instance, Rank: rank,
		Endpoint: fmt.Sprintf("tcp://%s:%d", instance, 5000+rank), HashSeed: hashing.Seed,
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func (w *world) register(r conductor.Registration) {
	w.t.Helper()
	if err := w.Conductor().Register(r); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) unregister(f conductor.Filter, want ...string) {
	w.t.Helper()
	removed, err := w.Conductor().Unregister(f)
	if err != nil {
		w.t.Fatal(err)
	}
	if got := strings.Join(removed, " "); got != strings.Join(want, " ") {
		w.t.Errorf("removed %s, want %v", got, want)
	}
}

// instance matches every publisher of an instance.
func instance(name string) conductor.Filter {
	return conductor.Filter{Instance: name, Tenant: scope.Tenant}
}

// publisher returns the engine behind a registration.
func (w *world) publisher(r conductor.Registration) *engine {
	h := fnv.New64a()
	h.Write([]byte(r.Endpoint)) // never fails
	return w.net.engine(r.Endpoint, h.Sum64())
}

// hits returns the answer to a query as "i1: 16 GPU 16 CPU 0 DISK 0 DP 0:16",
// once as tokens and once as hashes, which must agree.
func (w *world) hits(id conductor.Identity, tokens []uint32, instance string) string {
	w.t.Helper()
	if err := w.Conductor().Streams().Barrier(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	var a conductor.Answer
	req := &conductor.Query{Identity: id, Instance: instance, Tokens: tokens}
	if err := w.Conductor().Query(req, &a); err != nil {
		w.t.Fatal(err)
	}
	byTokens := answerText(&a)
	req = &conductor.Query{Identity: id, Instance: instance, Hashes: sequence(tokens, int(id.BlockSize)), ByHash: true}
	if err := w.Conductor().Query(req, &a); err != nil {
		w.t.Fatal(err)
	}
	if byHash := answerText(&a); byHash != byTokens {
		w.t.Errorf("by hash %q, by tokens %q", byHash, byTokens)
	}
	return byTokens
}

func answerText(a *conductor.Answer) string {
	rows := make([]string, len(a.Instances))
	for i, in := range a.Instances {
		rows[i] = fmt.Sprintf("%s: %d", in.Instance, in.Longest)
		for m, tokens := range in.Media {
			rows[i] += fmt.Sprintf(" %s %d", a.Media[m], tokens)
		}
		rows[i] += " DP"
		for _, r := range in.Ranks {
			rows[i] += fmt.Sprintf(" %d:%d", r.Rank, r.Tokens)
		}
	}
	return strings.Join(rows, ", ")
}

func (w *world) wantHits(id conductor.Identity, tokens []uint32, instance, want string) {
	w.t.Helper()
	if got := w.hits(id, tokens, instance); got != want {
		w.t.Errorf("answer is %q, want %q", got, want)
	}
}

// none is the row of an instance of one rank 0 without a hit.
func none(instance string) string { return instance + ": 0 GPU 0 CPU 0 DISK 0 DP 0:0" }

// gpu is the row of an instance of one rank 0 with tokens on its device alone.
func gpu(instance string, tokens int) string {
	return fmt.Sprintf("%s: %d GPU %d CPU 0 DISK 0 DP 0:%d", instance, tokens, tokens, tokens)
}
