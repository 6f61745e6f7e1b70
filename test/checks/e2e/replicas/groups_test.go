package replicas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// TestGroupsOutliveReplica kills one of two replicas in the middle of a fan-out of sub-agents that it alone has placed. The other one
// knows their homes and that of their group: those that ask again stay where they were, and the rest come beside them.
//
// Costs are in blocks, so that no time decides. With a head of 1,500 blocks and an end of 8, the load of all sub-agents together
// makes the home dearer by less than what a move costs, which is the head, whether or not first tokens were reported yet. Where the load
// of the killed replica is forgotten, all ranks cost the same, and a move is worth nothing.
//
// In the mesh groups come on two ways, messages and snapshots, and either is enough: the test fails where neither has them.
func TestGroupsOutliveReplica(t *testing.T) {
	t.Run("mesh", func(t *testing.T) { fanOutDuringKill(t, "") })
	t.Run("nats", func(t *testing.T) { fanOutDuringKill(t, natstest.Start(t).URL) })
}

// family is engines that answer with a token and no end before the test's, and clients of the replicas' proxies.
type family struct {
	t       *testing.T
	ctx     context.Context // of the clients, until the end
	proxies []int
	over    chan struct{} // closed at the end
	clients sync.WaitGroup

	mu sync.Mutex
	at map[string][]uint64 // by session: the workers that its requests have come to, in order
}

const children = 16

func fanOutDuringKill(t *testing.T, nats string) {
	f := &family{t: t, over: make(chan struct{}), at: map[string][]uint64{}}
	f.proxies = []int{e2e.FreePort(t), e2e.FreePort(t)}
	var leave context.CancelFunc
	f.ctx, leave = context.WithCancel(t.Context())
	defer func() { close(f.over); leave(); f.clients.Wait() }()
	fleet := newFleet(t, options{size: 2, direct: true, nats: nats, args: func(_ []string, own int) []string {
		return []string{"--use-kv-events=false", "--gateway-session-affinity", "soft", "--proxy-port", strconv.Itoa(f.proxies[own])}
	}})
	killed, stays := fleet.replicas[0], fleet.replicas[1]
	told := fleet.replicas
	if nats != "" {
		told = told[:1] // the other one has it from NATS
	}
	f.engines(told)
	for _, r := range fleet.replicas {
		e2e.Eventually(t, r.name+" has the workers", func() error { return has(r, 8) })
		e2e.Eventually(t, r.name+" is ready", r.ready)
		e2e.Eventually(t, "the policy is that of "+r.name, func() error { return r.chooses("p") })
	}
	e2e.Eventually(t, "the replica that stays follows the other", func() error {
		n, err := stays.Sum(t.Context(), `select_service_replica_peers{state="connected"}`)
		if err == nil && n != 1 {
			err = fmt.Errorf("it follows %v", n)
		}
		return err
	})

	f.ask(0, "p", "", 0)
	for i := range children / 2 {
		f.ask(0, childName(i), "p", i)
	}
	for i := range children / 2 {
		e2e.Eventually(t, "the child is known", func() error { return f.knows(stays, childName(i)) })
	}
	group, err := groupOf(killed)
	if err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the group is known", func() error { return isGroup(stays, group) })
	killed.Kill()
	for i := range children { // those of the first half have lost their answers, and ask again
		f.ask(1, childName(i), "p", i)
	}
	for i := range children {
		for _, w := range f.came(childName(i)) {
			if w != group {
				t.Errorf("%s has come to %v, the group is on %d", childName(i), f.came(childName(i)), group)
			}
		}
	}
	if err := isGroup(stays, group); err != nil || f.came("p")[0] == group {
		t.Errorf("the parent is on %v, the group on %d, %v", f.came("p"), group, err)
	}
}

func childName(i int) string { return fmt.Sprint("c", i) }

// engines starts eight engines and registers them with each of the replicas, as it sets their policy.
func (f *family) engines(with []*replica) {
	f.t.Helper()
	section := e2e.Object{"aggregated": "p", "instances": []e2e.Object{{"name": "p", "type": "dynamo-default-cost-fn"}}}
	for id := range uint64(8) {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, _ = io.Copy(io.Discard, r.Body); r.URL.Path != "/v1/completions" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			session := r.Header.Get("x-session-id")
			f.mu.Lock()
			f.at[session] = append(f.at[session], id)
			f.mu.Unlock()
			w.Header().Set("content-type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-f.over:
			case <-r.Context().Done():
			}
		}))
		f.t.Cleanup(engine.Close)
		for _, r := range with {
			e2e.Eventually(f.t, "the engine is registered", func() error {
				return r.Do(f.t.Context(), http.MethodPost, "/workers", e2e.Object{
					"worker_id": id, "model_name": "m", "endpoint": engine.URL, "block_size": blockSize,
				}, nil)
			})
		}
	}
	for _, r := range with {
		e2e.Eventually(f.t, "the policy is set", func() error {
			return r.Do(f.t.Context(), http.MethodPut, "/policies", e2e.Object{"worker_selection": section}, nil)
		})
	}
}

// ask sends a turn of a session through a replica's proxy, and waits until it has come to an engine. The prompt has a head that
// all children have, and an end of its own.
func (f *family) ask(proxy int, session, parent string, i int) {
	f.t.Helper()
	prompt := make([]int, 0, 6032)
	for n := range 6000 {
		prompt = append(prompt, 1+n+7*len(parent))
	}
	for n := range 32 {
		prompt = append(prompt, 10_000+1000*i+n)
	}
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": prompt, "stream": true})
	if err != nil {
		f.t.Fatal(err)
	}
	before := len(f.came(session))
	f.clients.Go(func() {
		req, err := http.NewRequestWithContext(f.ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/v1/completions", f.proxies[proxy]), bytes.NewReader(body))
		if err != nil {
			f.t.Error(err)
			return
		}
		req.Header.Set("content-type", "application/json")
		req.Header.Set("x-session-id", session)
		if parent != "" {
			req.Header.Set("x-parent-session-id", parent)
		}
		if a, err := http.DefaultClient.Do(req); err == nil { // else its replica has been killed
			_, _ = io.Copy(io.Discard, a.Body)
			_ = a.Body.Close()
		}
	})
	e2e.Eventually(f.t, session+" has come to an engine", func() error {
		if len(f.came(session)) == before {
			return fmt.Errorf("%d requests of it have", before)
		}
		return nil
	})
}

// came returns the workers that the requests of a session have come to.
func (f *family) came(session string) []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.at[session])
}

// home is a session, or a group, as a replica lists it.
type home struct {
	Name string `json:"session"`
	Kind string `json:"name_of"`
	Home struct {
		Worker uint64 `json:"worker_id"`
	} `json:"home"`
}

func homes(r *replica) ([]home, error) {
	var list struct{ Sessions []home }
	err := r.get("/sessions", &list)
	return list.Sessions, err
}

// knows returns an error unless a replica has the home of a session where its last request has come to.
func (f *family) knows(r *replica, session string) error {
	all, err := homes(r)
	if err != nil {
		return err
	}
	came := f.came(session)
	for _, h := range all {
		if h.Name == session && h.Home.Worker == came[len(came)-1] {
			return nil
		}
	}
	return fmt.Errorf("%s is on %v; listed are %v", session, came, all)
}

// groupOf returns the home of the only group.
func groupOf(r *replica) (uint64, error) {
	all, err := homes(r)
	if err != nil {
		return 0, err
	}
	for _, h := range all {
		if h.Kind == "group" {
			return h.Home.Worker, nil
		}
	}
	return 0, fmt.Errorf("no group among %v", all)
}

// isGroup returns an error unless a replica has the home of the only group on a worker.
func isGroup(r *replica, worker uint64) error {
	now, err := groupOf(r)
	if err == nil && now != worker {
		err = fmt.Errorf("%s has the group on %d, not on %d", r.name, now, worker)
	}
	return err
}
