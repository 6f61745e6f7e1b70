package reservations

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into testdata")

// TestScripts plays testdata/*.txt: a line is a command, the lines below it that
// start with ">" are what it prints. Run with -rewrite to regenerate them and
// review the difference.
//
//	rank SCOPE SLOT            make worker SLOT, rank 0, known
//	remove SCOPE SLOT
//	book SCOPE ID SLOT TOKENS HASH...
//	prefill ID | output ID [FRACTION] | free ID
//	loads SCOPE
//	look SCOPE HASH...
//	wait SECONDS | expire | stats
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(string(want), string(got)); d != "" {
				t.Errorf("-file +run\n%s", d)
			}
		})
	}
}

// script is one ledger under a script.
type script struct {
	led   *Ledger
	clock *fakeClock
	out   bytes.Buffer
}

// play runs the commands of a script and returns it with fresh output.
func play(t *testing.T, text string) []byte {
	clock := newFakeClock()
	s := &script{clock: clock}
	s.led = New(1, clock.now, s)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ">") {
			continue
		}
		s.out.WriteString(line)
		if f := strings.Fields(line); len(f) > 0 && f[0] != "#" {
			if err := s.run(f[0], f[1:]); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	return s.out.Bytes()
}

func (s *script) print(format string, args ...any) { fmt.Fprintf(&s.out, "> "+format+"\n", args...) }

// The script prints the events of its ledger.
func (s *script) Booked(e Event) uint64 {
	s.print("event: booked %s on %s/%d", e.ID, e.Scope.Model, e.Rank.Worker)
	return 0
}
func (s *script) PrefillCompleted(e Event) { s.print("event: prefill completed %s", e.ID) }
func (s *script) Freed(e Event)            { s.print("event: freed %s", e.ID) }
func (s *script) Renewed(e Event)          { s.print("event: renewed %s", e.ID) }

func (s *script) run(command string, args []string) error {
	switch command {
	case "rank", "remove", "book", "loads", "look":
		return s.runOnScope(command, catalog.Scope{Model: args[0], Tenant: catalog.DefaultName}, args[1:])
	case "prefill":
		s.report(s.led.PrefillComplete(args[0]))
	case "output":
		var fraction *float64
		if len(args) > 1 {
			f, err := strconv.ParseFloat(args[1], 64)
			if err != nil {
				return err
			}
			fraction = &f
		}
		s.report(s.led.OutputBlock(args[0], fraction))
	case "free":
		s.report(s.led.Free(args[0]))
	case "wait":
		d, err := time.ParseDuration(args[0])
		s.clock.advance(d)
		return err
	case "expire":
		n, next := s.led.Expire()
		if next.IsZero() {
			s.print("%d expired", n)
		} else {
			s.print("%d expired, next in %v", n, next.Sub(s.clock.now()))
		}
	case "stats":
		st := s.led.Stats()
		s.print("{Live:%d Booked:%d Freed:%d Expired:%d Dropped:%d}", st.Live, st.Booked, st.Freed, st.Expired, st.Dropped)
	default:
		return errors.New("unknown command")
	}
	return nil
}

func (s *script) runOnScope(command string, sc catalog.Scope, args []string) error {
	nums, err := numbers(args)
	if command == "book" {
		nums, err = numbers(args[1:])
	}
	if err != nil {
		return err
	}
	switch command {
	case "rank":
		s.led.PutRank(sc, uint32(nums[0]), catalog.Rank{Worker: nums[0]})
	case "remove":
		s.print("%d freed", s.led.RemoveRank(sc, uint32(nums[0])))
	case "book":
		p := Placement{Slot: uint32(nums[0]), Rank: catalog.Rank{Worker: nums[0]}, PrefillTokens: nums[1]}
		req := Request{ID: args[0], Hashes: nums[2:], TrackPrefill: true}
		_, err := s.led.Book(sc, req, func(*View) (Placement, error) { return p, nil })
		s.report(err)
	case "loads":
		for _, l := range s.led.Loads(sc) {
			s.print("worker %d: %d tokens, %d blocks, %d requests", l.Rank.Worker, l.PrefillTokens, l.Blocks, l.Requests)
		}
	case "look":
		s.led.Look(sc, nums, func(v *View) {
			for slot := range v.Slots() {
				n := v.Shared(uint32(slot))
				if v.Known(uint32(slot), catalog.Rank{Worker: uint64(slot)}) {
					s.print("worker %d: shares %d, %d blocks with the prompt", slot, n, v.Load(uint32(slot)).Blocks+uint64(len(nums))-uint64(n))
				}
			}
		})
	}
	return nil
}

func (s *script) report(err error) {
	if err != nil {
		s.print("error: %v", err)
	}
}

func numbers(args []string) ([]uint64, error) {
	out := make([]uint64, len(args))
	for i, a := range args {
		n, err := strconv.ParseUint(a, 10, 64)
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}
