package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/client"
)

// TestOrder proves that calls about one reservation arrive in the order in which
// they were made, that one whose context ends leaves the line at once, that an
// output block behind the free is not sent, and that other reservations do not
// wait.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		ctx := t.Context()
		for _, id := range []string{"a", "b"} {
			if _, err := c.SelectAndReserve(ctx, client.SelectRequest{ID: id, Prompt: tokens}); err != nil {
				t.Fatal(err)
			}
		}
		f.next()
		gate := make(chan struct{})
		f.hook("POST prefill_complete", func() { <-gate })
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		faults := make(chan error, 20)
		line := []func() error{
			func() error { return c.PrefillComplete(ctx, "a") },
			func() error { return c.OutputBlock(ctx, "a", nil) },
			func() error {
				if err := c.Renew(soon, "a"); !errors.Is(err, context.DeadlineExceeded) {
					return errors.Join(errors.New("cancelled renewal"), err)
				}
				return nil
			},
			func() error { return c.OutputBlock(ctx, "a", new(0.5)) },
			func() error { return c.Free(ctx, "a") },
			func() error { return c.OutputBlock(ctx, "a", nil) },
			func() error { return c.OutputBlock(ctx, "b", nil) },
		}
		for _, call := range line {
			go func() { faults <- call() }()
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(faults) != 2 { // b's and the cancelled one
			t.Errorf("%d calls done, want 2", len(faults))
		}
		close(gate)
		for range line {
			if err := <-faults; err != nil {
				t.Error(err)
			}
		}
		want := []string{
			"POST /reservations/a/prefill_complete", "POST /reservations/b/output_block",
			"POST /reservations/a/output_block", "POST /reservations/a/output_block", "DELETE /reservations/a",
		}
		if got := f.requests(); !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		if _, err := c.SelectAndReserve(ctx, client.SelectRequest{ID: "a", Prompt: tokens}); err != nil {
			t.Fatal(err)
		}
		if err := c.OutputBlock(ctx, "a", nil); err != nil || f.outputs != 4 {
			t.Errorf("output block of an id that is booked again: %v, %d blocks", err, f.outputs)
		}
		_ = c.Close()
	})
}
