package admission_test

import (
	"fmt"

	"github.com/select-service/select-service/internal/selection/admission"
)

// A rank is busy above twice its batch size; who comes then waits until the
// load went down.
func ExampleQueue() {
	threshold := 2.0
	config := admission.Config{Threshold: &threshold}
	queue := admission.NewQueue(config.ForModel("llama"))

	prefill, batch := uint64(2049), uint64(1024)
	canRun := func(w *admission.Waiter) bool { return !w.Class().Busy(prefill, batch) }

	for i, name := range []string{"first", "second", "urgent"} {
		w := &admission.Waiter{Tokens: 512, Uncached: 512, Arrived: float64(i), Value: name}
		if name == "urgent" {
			w.StrictPriority = 1
		}
		if queue.Classify(w); !canRun(w) {
			if err := queue.Add(w, 1); err != nil {
				fmt.Println(err) // the class is full
			}
		}
	}
	fmt.Println(queue.Len(), "wait with", queue.Tokens(), "tokens")

	prefill = 0 // a prefill ended: whatever can run now runs
	for w := queue.Next(0, canRun); w != nil; w = queue.Next(0, canRun) {
		fmt.Println(w.Value)
	}
	// Output:
	// 3 wait with 1536 tokens
	// urgent
	// first
	// second
}
