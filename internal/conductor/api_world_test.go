package conductor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hits returns the answer to a query as "i1: 16 GPU 16 CPU 0 DISK 0 DP 0:16",
// once as tokens and once as hashes, which must agree.
func hits(w *servicetest.World, id conductor.Identity, tokens []uint32, instance string) string {
	w.T.Helper()
	if err := w.Conductor().Streams().Barrier(context.Background()); err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
	var a conductor.Answer
	req := &conductor.Query{Identity: id, Instance: instance, Tokens: tokens}
	if err := w.Conductor().Query(req, &a); err != nil {
		w.T.Fatal(err)
	}
	byTokens := answerText(&a)
	req = &conductor.Query{Identity: id, Instance: instance, Hashes: servicetest.Sequence(tokens, int(id.BlockSize)), ByHash: true}
	if err := w.Conductor().Query(req, &a); err != nil {
		w.T.Fatal(err)
	}
	if byHash := answerText(&a); byHash != byTokens {
		w.T.Errorf("by hash %q, by tokens %q", byHash, byTokens)
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

func wantHits(w *servicetest.World, id conductor.Identity, tokens []uint32, instance, want string) {
	w.T.Helper()
	if got := hits(w, id, tokens, instance); got != want {
		w.T.Errorf("answer is %q, want %q", got, want)
	}
}

// none is the row of an instance of one rank 0 without a hit.
func none(instance string) string { return instance + ": 0 GPU 0 CPU 0 DISK 0 DP 0:0" }

// gpu is the row of an instance of one rank 0 with tokens on its device alone.
func gpu(instance string, tokens int) string {
	return fmt.Sprintf("%s: %d GPU %d CPU 0 DISK 0 DP 0:%d", instance, tokens, tokens, tokens)
}
