package gateway_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestCrowdByLoad: requests that are placed by load and come at once count for each other, so
// that they are spread by their number, whatever tokens the engines carry beside them.
func TestCrowdByLoad(t *testing.T) {
	image := `{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`
	for name, tt := range map[string]struct {
		path, body string
		chats      int // engines that carry a chat
	}{
		"idle engines":        {"/v1/embeddings", `{"model":"m","input":"x"}`, 0},
		"three with a chat":   {"/v1/rerank", `{"model":"m","query":"x"}`, 3},
		"images in chats":     {chatPath, image, 3},
		"a body without JSON": {"/v1/audio/transcriptions", "audio", 4},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			for id := range uint64(4) {
				w.put(id+1, 1)
			}
			for i := range tt.chats {
				w.post(chatPath, chat(servicetest.Prompt(uint32(i+1), 64), ""))
			}
			before := w.loads()
			went, mu := map[string]int{}, sync.Mutex{}
			var all []*envoy
			var wg sync.WaitGroup
			for range 40 {
				e := w.open()
				all = append(all, e)
				e.request(tt.path, false)
				wg.Go(func() {
					e.body(tt.body, true)
					p := e.placement(true, false)
					mu.Lock()
					defer mu.Unlock()
					went[p.destination]++
				})
			}
			wg.Wait()
			for id := range uint64(4) {
				if n := went[at(id+1)]; n < 9 || n > 11 {
					t.Errorf("went to %v", went)
				}
			}
			for _, e := range all {
				e.close()
			}
			w.wantLoads(before)
		})
	}
}

// TestNoRoomToBook: where the ledger is full, requests that are placed by load are placed and
// counted, and a chat with a known prompt is refused.
func TestNoRoomToBook(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Reservations = reservations.Limits{Reservations: 1} })
	w.put(1, 1)
	w.post(chatPath, chat(servicetest.Prompt(1, 16), ""))
	image := `{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`
	for path, text := range map[string]string{"/v1/embeddings": "{}", chatPath: image} {
		e, p := w.post(path, text)
		if p.destination != at(1) {
			t.Errorf("%s: %+v", path, p)
		}
		e.response(200, "application/json", false)
		e.chunk("{}", true)
		e.close()
	}
	w.wantCount("requests_total", `outcome="unbooked"`, 2)
	w.wantLoads("1/0: 16 4 1")
	if _, p := w.post(chatPath, chat(servicetest.Prompt(2, 16), "")); p.status != 503 {
		t.Errorf("a chat: %+v", p)
	}
	if got := w.loads(); !strings.HasSuffix(got, " 1") {
		t.Error(fmt.Sprint("loads are ", got))
	}
}
