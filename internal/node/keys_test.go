package node_test

import (
	"context"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// hostBlocks offers a copy without keys under unknown names to worker 1's stream, and returns
// how many of its blocks a prompt without keys finds on the host.
func hostBlocks(w *servicetest.World, number uint32) uint32 {
	w.T.Helper()
	engine := w.Engine(1, 0)
	tokens := servicetest.Prompt(100+number, 8)
	engine.Seq = uint64(number)
	engine.Publish(0, engine.Stored(tokens, servicetest.BlockSize, servicetest.Dict{"medium": "CPU", "extra_keys": nil}))
	w.Settle()
	scores, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: selection.Prompt{HasTokenIDs: true, TokenIDs: tokens}})
	if err != nil || len(scores.Rows) != 1 {
		w.T.Fatalf("%+v, %v", scores, err)
	}
	return scores.Rows[0].Host
}

// TestPromptsShowKeys: a prompt with a salt, an adapter or a multimodal object shows that keys are
// in use, in whatever request it comes; lists without objects do not.
func TestPromptsShowKeys(t *testing.T) {
	ctx := context.Background()
	routes := map[string]func(*servicetest.World, selection.Prompt) error{
		"select": func(w *servicetest.World, p selection.Prompt) error {
			_, err := w.Select(ctx, &selection.SelectRequest{Scope: servicetest.Scope, Prompt: p}, false)
			return err
		},
		"select and reserve": func(w *servicetest.World, p selection.Prompt) error {
			_, err := w.Select(ctx, &selection.SelectRequest{Scope: servicetest.Scope, Prompt: p}, true)
			return err
		},
		"explain": func(w *servicetest.World, p selection.Prompt) error {
			_, err := w.Explain(ctx, &selection.SelectRequest{Scope: servicetest.Scope, Prompt: p})
			return err
		},
		"reserve": func(w *servicetest.World, p selection.Prompt) error {
			_, err := w.Reserve(&selection.ReserveRequest{Scope: servicetest.Scope, Prompt: p, ID: "r", Rank: catalog.Rank{Worker: 1}})
			return err
		},
		"overlap scores": func(w *servicetest.World, p selection.Prompt) error {
			_, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: p})
			return err
		},
		"potential loads": func(w *servicetest.World, p selection.Prompt) error {
			_, err := w.PotentialLoads(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: p})
			return err
		},
	}
	tokens := servicetest.Prompt(1, 8)
	for name, tc := range map[string]struct {
		prompt selection.Prompt
		want   uint32
	}{
		"plain":      {selection.Prompt{HasTokenIDs: true, TokenIDs: tokens}, 2},
		"no objects": {selection.Prompt{HasTokenIDs: true, TokenIDs: tokens, MM: [][]uint64{nil, {}}}, 2},
		"salt":       {selection.Prompt{HasTokenIDs: true, TokenIDs: tokens, CacheSalt: "s"}, 0},
		"adapter":    {selection.Prompt{HasTokenIDs: true, TokenIDs: tokens, LoRA: "a"}, 0},
		"object":     {selection.Prompt{HasTokenIDs: true, TokenIDs: tokens, MM: [][]uint64{nil, {7}}}, 0},
	} {
		for route, ask := range routes {
			t.Run(name+" "+route, func(t *testing.T) {
				w := servicetest.Start(t)
				w.Put(servicetest.Record(1, 1))
				if err := ask(w, tc.prompt); err != nil {
					t.Fatal(err)
				}
				if got := hostBlocks(w, 0); got != tc.want {
					t.Errorf("%d blocks on the host, want %d", got, tc.want)
				}
			})
		}
	}
}

// TestStateKeysShown: that keys were shown outlives a restart, also if the snapshot has no block
// or rank of the scope.
func TestStateKeysShown(t *testing.T) {
	for name, shown := range map[string]bool{"not shown": false, "shown": true} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			w := startAt(t, path)
			w.Put(servicetest.Record(1, 1))
			p := selection.Prompt{HasTokenIDs: true, TokenIDs: servicetest.Prompt(1, 8)}
			if shown {
				p.CacheSalt = "s"
			}
			if _, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: p}); err != nil {
				t.Fatal(err)
			}
			w.Remove(1) // the scope has no worker either
			w.save()
			for range 2 { // and the next snapshot has it too
				again := startAt(t, path)
				again.save()
			}
			last := startAt(t, path)
			last.Put(servicetest.Record(1, 1))
			want := uint32(2)
			if shown {
				want = 0
			}
			if got := hostBlocks(last.World, 0); got != want {
				t.Errorf("%d blocks on the host, want %d", got, want)
			}
		})
	}
}
