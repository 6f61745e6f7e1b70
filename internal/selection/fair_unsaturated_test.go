package selection_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestFairBelowSaturation: as long as no request waits, answers and explanations are the same to the byte with fairness and without
// it, for random histories of tenants, priorities, targets and ends.
func TestFairBelowSaturation(t *testing.T) {
	for seed := range uint64(4) {
		for _, policy := range []string{"", "predicted-ttft"} {
			var answers [3][]byte
			for i, by := range []string{"none", "tenant", "program"} {
				synctest.Test(t, func(t *testing.T) { answers[i] = unsaturated(t, seed, policy, by) })
			}
			for _, other := range answers[1:] {
				if !bytes.Equal(answers[0], other) {
					t.Errorf("seed %d, policy %q: answers differ:\n%.2000s\n%.2000s", seed, policy, answers[0], other)
				}
			}
			if n := bytes.Count(answers[0], []byte("\n")); n < 200 {
				t.Errorf("%d answers", n)
			}
		}
	}
}

// unsaturated plays a history in which nobody waits, and returns the answers, one a line.
func unsaturated(t *testing.T, seed uint64, policy, by string) []byte {
	file, err := admission.ParsePolicy([]byte(`
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: c, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: 100000000, fairness: {by: ` + by + `, weights: {t1: 9}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	changes := []func(*node.Config){func(c *node.Config) {
		c.Scopes.Admission = admission.Config{File: file}
		c.Selection.Random = servicetest.Random(seed, 1)
	}}
	if policy != "" {
		changes = append(changes, servicetest.Policy(t, policy, ""))
	}
	w := servicetest.Start(t, changes...)
	for id := range uint64(4) {
		w.Put(servicetest.Record(id, 2))
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	var answers []byte
	var running []string
	for step := range 400 {
		if len(running) > 0 && rnd.IntN(3) == 0 {
			i := rnd.IntN(len(running))
			id := running[i]
			running = append(running[:i], running[i+1:]...)
			if rnd.IntN(4) > 0 {
				_ = w.PrefillComplete(id)
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
			}
			if err := w.Free(id); err != nil {
				t.Fatal(err)
			}
			continue
		}
		id := fmt.Sprint(step)
		req := servicetest.Ask(servicetest.Prompt(rnd.Uint32N(8), 64*(1+rnd.IntN(40))))
		req.ReservationID, req.Explain = &id, rnd.IntN(2) == 0
		req.FairTenant, req.FairnessID = fmt.Sprint("t", rnd.IntN(3)), fmt.Sprint(rnd.IntN(5))
		req.StrictPriority = rnd.Uint32N(2)
		if rnd.IntN(3) == 0 {
			req.TTFTTarget = time.Duration(1+rnd.IntN(2000)) * time.Millisecond
		}
		sel, err := w.Select(t.Context(), req, true)
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, id)
		answer, err := json.Marshal(struct {
			selection.Selection
			StopWatch bool // instead of a function
		}{sel, sel.StopWatch != nil})
		if err != nil {
			t.Fatal(err)
		}
		answers = append(append(answers, answer...), '\n')
		time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
		synctest.Wait()
	}
	return answers
}
