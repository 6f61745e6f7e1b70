package overload_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/select-service/select-service/internal/selection/overload"
)

// text shows limits as "0.5 10 -".
func text(t overload.Thresholds) string {
	return show(t.DecodeBlocks) + " " + show(t.PrefillTokens) + " " + show(t.PrefillFraction)
}

func show[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// everybody knows every model.
func everybody(string) bool { return true }

// TestTable plays changes of two models: a set leaves what is not given, a clear
// does not bring the defaults back, and models do not touch each other.
func TestTable(t *testing.T) {
	table := overload.NewTable(overload.Thresholds{DecodeBlocks: new(.9), PrefillTokens: new(uint64(100))}, everybody)
	want := func(model, limits string) {
		t.Helper()
		if got := text(*table.Of(model)); got != limits {
			t.Errorf("%s has %q, want %q", model, got, limits)
		}
	}
	given := func(c overload.Change, err error) func(string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return func(want string) {
			t.Helper()
			was, now, _ := strings.Cut(want, " > ")
			if gotWas, gotNow := text(c.Was), text(c.Now); gotWas != was || gotNow != now || c.Any() != (was != now) {
				t.Errorf("answered %q > %q (%t), want %q", gotWas, gotNow, c.Any(), want)
			}
		}
	}
	want("a", "0.9 100 -")
	given(table.Set("a", blocks(.5)))("0.9 100 - > 0.5 100 -")
	want("a", "0.5 100 -")
	want("b", "0.9 100 -")
	given(table.Set("a", fraction(2)))("0.5 100 - > 0.5 100 2")
	given(table.Set("a", overload.Thresholds{}))("0.5 100 2 > 0.5 100 2")
	given(table.Set("a", overload.Thresholds{PrefillTokens: new(uint64(100)), PrefillFraction: new(2.0)}))("0.5 100 2 > 0.5 100 2")
	given(table.Clear("a", overload.PrefillTokens))("0.5 100 2 > 0.5 - 2")
	given(table.Clear("a", overload.PrefillTokens))("0.5 - 2 > 0.5 - 2")
	given(table.Clear("a", overload.PrefillTokens, overload.DecodeBlocks))("0.5 - 2 > - - 2")
	given(table.Clear("b"))("0.9 100 - > - - -")
	want("a", "- - 2")
	want("b", "- - -")
	given(table.Set("b", tokens(0)))("- - - > - 0 -")
	given(table.Set("b", overload.Thresholds{DecodeBlocks: new(.9), PrefillTokens: new(uint64(100))}))("- 0 - > 0.9 100 -")
	want("b", "0.9 100 -")

	if _, err := table.Set("a", blocks(2)); err == nil {
		t.Error("a share of 2 is set")
	}
	want("a", "- - 2")
}

// TestOneZero: -0, which is in range, is stored as 0 from every source.
func TestOneZero(t *testing.T) {
	minus := math.Copysign(0, -1)
	table := overload.NewTable(blocks(minus), everybody)
	if got := text(*table.Of("a")); got != "0 - -" {
		t.Errorf("the defaults are %q", got)
	}
	c, err := table.Set("a", overload.Thresholds{DecodeBlocks: new(minus), PrefillFraction: new(minus)})
	if err != nil || text(c.Now) != "0 - 0" || text(*table.Of("a")) != "0 - 0" {
		t.Errorf("%q, %v; the table has %q", text(c.Now), err, text(*table.Of("a")))
	}
}

// TestTableCopies proves that no one changes a table through what was passed in.
func TestTableCopies(t *testing.T) {
	share, limit := .5, uint64(10)
	table := overload.NewTable(blocks(.9), everybody)
	given := overload.Thresholds{DecodeBlocks: &share, PrefillTokens: &limit}
	if _, err := table.Set("a", given); err != nil {
		t.Fatal(err)
	}
	before := table.Of("a")
	share, limit = 1, 11
	if got := text(*table.Of("a")); got != "0.5 10 -" {
		t.Errorf("the table has %q", got)
	}
	if _, err := table.Clear("a"); err != nil {
		t.Fatal(err)
	}
	if got := text(*before); got != "0.5 10 -" {
		t.Errorf("what was read changed to %q", got)
	}
}

// TestTableBounds: only so many models have limits of their own; those that
// no one knows any more give way, and who has the defaults takes no room.
func TestTableBounds(t *testing.T) {
	gone := map[string]bool{}
	table := overload.NewTable(blocks(.5), func(model string) bool { return !gone[model] })
	name := func(i int) string { return fmt.Sprint("m", i) }
	for i := range overload.MaxModels {
		if _, err := table.Set(name(i), tokens(1)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func() {
		t.Helper()
		if _, err := table.Set("late", tokens(2)); !errors.Is(err, overload.ErrTooMany) {
			t.Errorf("Set: %v", err)
		}
		if _, err := table.Clear("late"); !errors.Is(err, overload.ErrTooMany) {
			t.Errorf("Clear: %v", err)
		}
		if got := text(*table.Of("late")); got != "0.5 - -" {
			t.Errorf("a refused change left %q", got)
		}
	}
	refused()
	if _, err := table.Set("late", blocks(.5)); err != nil { // the default
		t.Error(err)
	}
	if _, err := table.Set(name(7), tokens(3)); err != nil { // has its room
		t.Error(err)
	}
	gone[name(3)], gone[name(4)] = true, true
	for _, late := range []string{"late", "later"} {
		if _, err := table.Set(late, tokens(2)); err != nil {
			t.Error(err)
		}
	}
	for model, want := range map[string]string{
		"late": "0.5 2 -", "later": "0.5 2 -", name(3): "0.5 - -", name(4): "0.5 - -", name(5): "0.5 1 -", name(7): "0.5 3 -",
	} {
		if got := text(*table.Of(model)); got != want {
			t.Errorf("%s has %q, want %q", model, got, want)
		}
	}
	if _, err := table.Set("latest", tokens(2)); !errors.Is(err, overload.ErrTooMany) {
		t.Errorf("Set: %v", err)
	}
	if _, err := table.Set("late", overload.Thresholds{DecodeBlocks: new(.5)}); err != nil {
		t.Error(err)
	}
	if _, err := table.Clear("late", overload.PrefillTokens); err != nil { // back at the defaults
		t.Error(err)
	}
	if _, err := table.Set("latest", tokens(2)); err != nil {
		t.Error(err)
	}
}

// TestTableConcurrently: readers see limits that were set together, and no
// writer undoes another's.
func TestTableConcurrently(t *testing.T) {
	table := overload.NewTable(overload.Thresholds{}, everybody)
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				for _, model := range []string{"0", "1", "2"} {
					limits := table.Of(model)
					if limits.Any() && float64(*limits.PrefillTokens) != *limits.PrefillFraction {
						t.Errorf("%s has %q", model, text(*limits))
						return
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	const last = 300
	for w := range 3 {
		writers.Go(func() {
			for i := range uint64(last + 1) {
				if _, err := table.Set(fmt.Sprint(w), overload.Thresholds{PrefillTokens: &i, PrefillFraction: new(float64(i))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	for w := range 3 {
		if got := text(*table.Of(fmt.Sprint(w))); got != "- 300 300" {
			t.Errorf("%d has %q", w, got)
		}
	}
}
