package replicas_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// writesBack is how long changes of the catalog may be refused after the loss of a server.
const writesBack = 10 * time.Second

// TestServersDie proves, on a cluster of three NATS servers under load, that no selection fails while
// its servers, of which one is the leader of the catalog, are killed and started again one by one, and
// that changes of the catalog are possible again soon; that with all servers gone selections go on and
// changes are 503 with Retry-After; and that the replicas have the same workers afterwards.
func TestServersDie(t *testing.T) {
	servers := natstest.Cluster(t, 3)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL)
	}
	f := newFleet(t, options{direct: true, nats: strings.Join(urls, ","), args: func([]string, int) []string {
		return []string{"--use-kv-events=false"}
	}})
	worker := func(r *replica, id, version int) (status int, retryAfter string) {
		body := fmt.Sprintf(`{"worker_id":%d,"model_name":"m","endpoint":"http://w%d","block_size":16,"taints":["v%d"]}`, id, id, version)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL()+"/workers", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	version := 0
	written := func() error {
		version++
		if status, _ := worker(f.replicas[version%fleetSize], version%7, version); status != http.StatusCreated {
			return fmt.Errorf("status %d", status)
		}
		return nil
	}
	e2e.Eventually(t, "the first worker is registered", written)
	for range 7 {
		e2e.Eventually(t, "a worker is registered", written)
	}
	for _, r := range f.replicas {
		e2e.Eventually(t, r.name+" has the workers", func() error { return has(r, 7) })
	}

	ended := make(chan struct{})
	var callers sync.WaitGroup
	var counted [fleetSize]int
	for i, r := range f.replicas {
		callers.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond) // the servers need a part of the machine
			defer pace.Stop()
			for n := 0; ; n++ {
				select {
				case <-ended:
					counted[i] = n
					return
				case <-pace.C:
				}
				id := fmt.Sprintf("s%d-%d", i, n)
				if err := r.Do(t.Context(), http.MethodPost, "/select_and_reserve", e2e.Object{"model_name": "m", "reservation_id": id, "token_ids": []int{1, 2, 3}}, nil); err != nil {
					t.Errorf("selection %s: %v", id, err)
					return
				}
				if err := r.Do(t.Context(), http.MethodDelete, "/reservations/"+id, nil, nil); err != nil {
					t.Errorf("free %s: %v", id, err)
					return
				}
			}
		})
	}
	for i, s := range servers {
		s.Kill(t)
		began := time.Now()
		for n := 0; n < 5; n++ {
			e2e.Eventually(t, "a change without server "+fmt.Sprint(i), written)
		}
		if took := time.Since(began); took > writesBack && e2e.Alone() {
			t.Errorf("changes are possible again after %v", took)
		} else {
			t.Logf("five changes %v after server %d was killed", took, i)
		}
		s.Restart(t)
		e2e.Eventually(t, "a change with server "+fmt.Sprint(i), written)
	}

	for _, s := range servers {
		s.Kill(t)
	}
	e2e.Eventually(t, "a change is refused", func() error {
		if status, retryAfter := worker(f.replicas[0], 1, 0); status != http.StatusServiceUnavailable || retryAfter == "" {
			return fmt.Errorf("status %d, Retry-After %q", status, retryAfter)
		}
		return nil
	})
	down := time.NewTimer(time.Duration(of(60, 2)) * time.Second)
	<-down.C
	for _, s := range servers {
		s.Restart(t)
	}
	back := time.Now()
	e2e.Eventually(t, "a change with all servers", written)
	t.Logf("a change %v after all servers are back", time.Since(back))
	close(ended)
	callers.Wait()
	t.Logf("%v selections", counted)
	var lists []string
	for _, r := range f.replicas {
		e2e.Eventually(t, r.name+" has the last change", func() error {
			var list []struct {
				ID     int      `json:"worker_id"`
				Taints []string `json:"taints"`
			}
			if err := r.get("/workers", &list); err != nil {
				return err
			}
			text := fmt.Sprint(list)
			if !strings.Contains(text, fmt.Sprintf("[v%d]", version)) {
				return fmt.Errorf("%s, not v%d", text, version)
			}
			lists = append(lists, text)
			return nil
		})
	}
	for _, text := range lists {
		if text != lists[0] {
			t.Errorf("replicas have different workers:\n%s\n%s", text, lists[0])
		}
	}
}

// has returns an error if a replica has not that many workers.
func has(r *replica, want int) error {
	var list []e2e.Object
	if err := r.get("/workers", &list); err != nil {
		return err
	}
	if len(list) != want {
		return fmt.Errorf("%d workers, want %d", len(list), want)
	}
	return nil
}
