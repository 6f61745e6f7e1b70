package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// layReplicas starts two pickers that follow each other. The second has an Envoy of its own.
func layReplicas(t *testing.T) (first, second *bed) {
	t.Helper()
	sync := [2]string{strconv.Itoa(e2e.FreePort(t)), strconv.Itoa(e2e.FreePort(t))}
	flags := func(own int) []string {
		return []string{"--replica-sync-port", sync[own], "--replica-sync-peers", "tcp://127.0.0.1:" + sync[1-own], "--gateway-lease", "3s"}
	}
	first = lay(t, setup{service: flags(0)})
	gateway := e2e.FreePort(t)
	second = new(*first)
	second.picker = e2e.Serve(t, nil, append([]string{"--gateway-port", strconv.Itoa(gateway), "--gateway-drain-delay", "10ms"}, flags(1)...)...)
	first.register(second.picker)
	second.envoy = startEnvoy(t, gateway, first.engines)
	for _, at := range []*bed{first, second} {
		e2e.Eventually(t, "the replicas follow each other", func() error {
			if n, err := at.picker.Sum(t.Context(), `select_service_replica_peers{state="connected"}`); err != nil || n != 1 {
				return fmt.Errorf("%v, %w", n, err)
			}
			return nil
		})
	}
	return first, second
}

// booked waits until so many requests are booked.
func (b *bed) booked(want int) {
	b.t.Helper()
	e2e.Eventually(b.t, fmt.Sprint(want, " requests are booked"), func() error {
		all, err := b.loads(b.picker)
		n := 0
		for _, l := range all {
			n += int(l.Requests)
		}
		if err != nil || n != want {
			return fmt.Errorf("%d, %w", n, err)
		}
		return nil
	})
}

// twoReplicas: what one picker books the other counts, and when the first dies its
// leases end there.
func twoReplicas(t *testing.T) {
	b, other := layReplicas(t)
	for _, e := range b.engines {
		e.speed(t, still)
	}
	cut := b.begin(chats, chat(words(50, 100), streamed))
	other.booked(1)
	kept := other.begin(chats, chat(words(51, 100), streamed))
	b.booked(2)
	if cut.engine() == kept.engine() {
		t.Errorf("both went to %s, though the second picker knew of the first request", cut.engine())
	}
	b.picker.Kill()
	if _, err := cut.rest(); err == nil {
		t.Error("the request of the picker that died came to an end")
	}
	other.booked(1) // the lease of the other's has ended
	for _, e := range b.engines {
		e.speed(t, hasty)
	}
	kept.end(t)
	other.idle()
}

// placeElsewhere: what one picker has reserved a request that comes to the other one takes, and nobody takes it again.
func placeElsewhere(t *testing.T) {
	b, other := layReplicas(t)
	reserved := b.post(http.StatusNoContent, chats, chat(words(49, 100)), "Prefer", "reserve-endpoint")
	id := reserved.header.Get("X-Select-Reservation-Id")
	other.booked(1)
	other.post(http.StatusOK, chats, chat(words(49, 100)), "X-Select-Reservation-Id", id)
	if at, _ := only(t, b.engines); at.address != reserved.header.Get("X-Llm-D-Reserved-Host-Port") {
		t.Errorf("%s has answered, reserved was %v", at.name, reserved.header)
	}
	for _, at := range []*bed{b, other} {
		at.idle()
		if code, _ := refusal(t, at.post(http.StatusServiceUnavailable, chats, chat(words(49, 100)), "X-Select-Reservation-Id", id)); code != "reservation_gone" {
			t.Errorf("the place that was taken: %s", code)
		}
	}
}

// noPicker: without a picker requests fail, or go to the engines in turn, as Envoy is
// told.
func noPicker(t *testing.T) {
	for name, tc := range map[string]struct {
		edits  []edit
		status int
	}{"closed": {nil, http.StatusInternalServerError}, "open": {[]edit{failOpen}, http.StatusOK}} {
		t.Run(name, func(t *testing.T) {
			b := lay(t, setup{envoy: tc.edits})
			b.post(http.StatusOK, chats, chat("Hello"))
			answers := func(what string, status int) {
				t.Helper()
				e2e.Eventually(t, what, func() error {
					a, err := b.send(t.Context(), http.MethodPost, chats, chat("Hello"))
					if err == nil && a.status != status {
						err = errors.New(a.String())
					}
					return err
				})
			}
			b.picker.Kill()
			answers("Envoy has noticed that the picker is gone", tc.status)
			e2e.Eventually(t, "the engines have noticed, too", func() error { // register counts who follows them
				for _, e := range b.engines {
					if n := e.subscribers(); n > 0 {
						return fmt.Errorf("%s has %d subscribers", e.name, n)
					}
				}
				return nil
			})
			b.picker.Run()
			b.register(b.picker)
			e2e.Eventually(t, "Envoy has found the picker again", func() error {
				a, err := b.send(t.Context(), http.MethodPost, chats, chat("Hello"))
				if err == nil && (a.status != http.StatusOK || b.placed() == 0) {
					err = errors.New(a.String())
				}
				return err
			})
			b.idle()
		})
	}
}

// pickerStops: a picker that is told to stop lets the answers under way come to their
// ends.
func pickerStops(t *testing.T) {
	const streams = 20
	b := lay(t, setup{service: []string{"--gateway-drain-timeout", "2m"}})
	for _, e := range b.engines {
		e.speed(t, still)
	}
	var all []*reply
	for i := range streams {
		all = append(all, b.begin(chats, chat(words(uint32(60+i), 50), streamed, object{"max_tokens": 200})))
	}
	if err := b.picker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the picker refuses new streams", func() error {
		a, err := b.send(t.Context(), http.MethodGet, "/v1/models", nil)
		if err == nil && a.status == http.StatusOK {
			err = errors.New("it does not")
		}
		return err
	})
	for _, e := range b.engines {
		e.speed(t, 50)
	}
	for _, r := range all {
		r.end(t)
	}
	if code, ended := b.picker.Wait(e2e.Patience); !ended || code != 0 {
		t.Errorf("the picker: code %d, ended: %t", code, ended)
	}
}

// prefillAndDecode: an engine for prompts and one for answers. The request goes to the
// second with a header that names the first, and either both are booked or none.
func prefillAndDecode(t *testing.T) {
	roles := []string{"", "prefill", "decode"}
	b := lay(t, setup{worker: func(worker int, record object) { record["role"] = roles[worker] }})
	prefill, decode := b.engines[0], b.engines[1]
	decode.speed(t, still)
	r := b.begin(chats, chat(words(80, 100), streamed))
	at, got := only(t, b.engines)
	if at != decode || got.header.Get("X-Prefiller-Host-Port") != prefill.address {
		t.Errorf("%s got %v", at.name, got.header)
	}
	b.awaitLoad(1, 0, "prefills", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill >= 100 })
	b.awaitLoad(2, 0, "has the answer's blocks", func(l e2e.Load) bool { return l.Requests == 1 && l.Decode > 0 })

	// The engine for answers is full: refused, and the prefill is not booked either.
	const threshold = "active_decode_blocks_threshold"
	b.picker.Must(t, http.StatusOK, http.MethodPost, "/busy_threshold", object{"model": model, threshold: 0.0001}, nil)
	refusal(t, b.post(http.StatusTooManyRequests, chats, chat(words(81, 100))))
	b.awaitLoad(1, 0, "prefills one", func(l e2e.Load) bool { return l.Requests == 1 })
	b.picker.Must(t, http.StatusOK, http.MethodDelete, "/busy_threshold?model="+model, nil, nil)

	// The first piece of the answer frees the prefill.
	decode.speed(t, normal)
	if _, err := r.event(); err != nil {
		t.Fatal(err)
	}
	b.awaitLoad(1, 0, "is done", func(l e2e.Load) bool { return !l.Carries() })
	decode.speed(t, hasty)
	r.end(t)
	b.idle()

	// Without an engine for prompts the other one does both.
	b.picker.Must(t, http.StatusOK, http.MethodDelete, "/workers/1", nil, nil)
	b.post(http.StatusOK, chats, chat(words(82, 100)))
	if at, got := only(t, b.engines); at != decode || got.header.Get("X-Prefiller-Host-Port") != "" {
		t.Errorf("%s got %v", at.name, got.header)
	}
	b.idle()
}

// peerWithCache: an engine that has nothing of the prompt is told by a header of llm-d's sidecar, or by a member of
// SGLang's body, which engine has it. What a client says of that reaches none.
func peerWithCache(t *testing.T) {
	const header = "X-Kv-Cache-Source-Host-Port"
	for name, tt := range map[string]struct {
		record func(worker int, record object)
		header string
		hints  bool
	}{
		"header": {func(worker int, record object) { record["kv_peer_endpoint"] = fmt.Sprintf("10.0.0.%d:8000", worker) }, "10.0.0.1:8000", false},
		"body": {func(_ int, record object) {
			record["kv_hints_in_body"], record["router_hint_worker_type"] = true, "any"
			record["router_hint_source_control_endpoints"] = object{"0": "tcp://10.0.0.1:9"}
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			b := lay(t, setup{worker: tt.record})
			shared := words(83, 400)
			b.warm(b.engines[0], chats, chat(shared))
			ids := make([]uint32, 20_000)
			b.picker.Must(t, http.StatusCreated, http.MethodPost, "/reservations", object{
				"model_name": model, "reservation_id": "load", "worker_id": 1, "token_ids": ids,
			}, nil)
			b.post(http.StatusOK, chats, chat(shared, object{"kv_hints": object{"message_id": "evil"}}), header, "evil:1")
			at, got := only(t, b.engines)
			hints, _ := got.field("kv_hints").(object)
			if at != b.engines[1] || got.header.Get(header) != tt.header || (hints["protocol_version"] == "0.1") != tt.hints || hints["message_id"] == "evil" {
				t.Errorf("%s got the header %q and %v", at.name, got.header.Get(header), hints)
			}
		})
	}
}

// peerForPair: of a pair the one that prefills is told by its peer's header who has the prompt's blocks, and the body, which both engines
// read, has no hint. What a client says of either reaches none.
func peerForPair(t *testing.T) {
	const header = "X-Kv-Cache-Source-Host-Port"
	roles := []string{"", "prefill", "prefill", "decode"}
	b := lay(t, setup{engines: 3, worker: func(worker int, record object) {
		record["role"], record["kv_peer_endpoint"] = roles[worker], fmt.Sprintf("10.0.0.%d:8000", worker)
		record["kv_hints_in_body"], record["router_hint_worker_type"] = true, "any"
		record["router_hint_source_control_endpoints"] = object{"0": "tcp://10.0.0.1:9"}
	}})
	shared := words(84, 400)
	b.warm(b.engines[0], chats, chat(shared))
	b.picker.Must(t, http.StatusCreated, http.MethodPost, "/reservations", object{
		"model_name": model, "reservation_id": "load", "worker_id": 1, "token_ids": make([]uint32, 20_000),
	}, nil)
	b.post(http.StatusOK, chats, chat(shared, object{"kv_hints": object{"message_id": "evil"}}), header, evil, "X-Llm-D-Kv-Cache-Source-Host-Port", evil,
		"X-Prefiller-Host-Port", evil)
	at, got := only(t, b.engines)
	if at != b.engines[2] || got.header.Get("X-Prefiller-Host-Port") != b.engines[1].address || !slices.Equal(got.header[header], []string{"10.0.0.1:8000"}) ||
		got.field("kv_hints") != nil || got.header["X-Llm-D-Kv-Cache-Source-Host-Port"] != nil {
		t.Errorf("%s got %v and %v", at.name, got.header, got.field("kv_hints"))
	}
}

// prefillRank: a sidecar that obeys is told the rank with the prompt's blocks, which is booked, beside
// the decode's; one that does not forwards a rank to both engines, so that it is told none, and
// what any rank of the prefill worker has to compute at most is booked on its least loaded one.
func prefillRank(t *testing.T) {
	roles := []string{"", "prefill", "decode"}
	for name, obeys := range map[string]bool{"obeys": true, "forwards": false} {
		t.Run(name, func(t *testing.T) {
			b := lay(t, setup{ranks: 2, worker: func(worker int, record object) {
				record["role"] = roles[worker]
				if worker == 2 && obeys {
					record["prefill_rank_header"] = true
				}
			}})
			prefill, decode := b.engines[0], b.engines[1]
			prompt := words(83, 200)
			b.warmRank(prefill, 1, chats, chat(prompt))
			decode.speed(t, still)
			r := b.begin(chats, chat(prompt, streamed), rankHeader, "1", prefillRankHeader, "0")
			at, got := only(t, b.engines)
			if at != decode || got.header.Get("X-Prefiller-Host-Port") != prefill.address {
				t.Errorf("%s got %v", at.name, got.header)
			}
			rank, own := got.header[prefillRankHeader], got.header[rankHeader]
			if obeys {
				if !slices.Equal(rank, []string{"1"}) || len(own) != 1 {
					t.Errorf("the sidecar is told %q for the prefill, %q for itself", rank, own)
				}
				b.awaitLoad(1, 1, "prefills the rest", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill < 100 })
			} else {
				if rank != nil || own != nil {
					t.Errorf("the sidecar is told %q for the prefill, %q for itself", rank, own)
				}
				e2e.Eventually(t, "a rank prefills everything", func() error {
					all, err := b.loads(b.picker)
					if sum := all[[2]int{1, 0}].Prefill + all[[2]int{1, 1}].Prefill; err != nil || sum < 200 {
						return fmt.Errorf("%+v, %w", all, err)
					}
					return nil
				})
			}
			decode.speed(t, hasty)
			r.end(t)
			b.idle()
		})
	}
}

// dynamoReplica: a selection service of Dynamo shares the bookings. What the picker
// books under its workers' ids counts there, and what is booked there the picker avoids.
func dynamoReplica(t *testing.T) {
	python := os.Getenv(dynamoEnv)
	if python == "" {
		t.Skipf("needs a Python with ai-dynamo-runtime: make test-gateway sets %s", dynamoEnv)
	}
	own, other, port := e2e.FreePort(t), e2e.FreePort(t), strconv.Itoa(e2e.FreePort(t))
	endpoint := func(port int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", port) }
	b := lay(t, setup{service: []string{"--replica-sync-port", strconv.Itoa(own), "--replica-sync-peers", endpoint(other)}})
	dynamo := e2e.New(t, e2e.Options{
		Command: []string{
			python, "-m", "dynamo.select_service", "--port", port, "--replica-sync-port", strconv.Itoa(other), "--replica-sync-peers", endpoint(own),
		},
		Env: map[string]string{"DYN_USE_KV_EVENTS": "false"}, Address: "127.0.0.1:" + port,
	})
	dynamo.Run()
	for i, e := range b.engines {
		record := object{
			"worker_id": i + 1, "model_name": model, "endpoint": "http://" + e.address, "block_size": blockSize,
			"data_parallel_size": 1, "max_num_batched_tokens": 8192,
		}
		if err := dynamo.Do(t.Context(), http.MethodPost, "/workers", record, nil); err != nil {
			t.Fatal(err)
		}
	}
	book := func(at *e2e.Service, id string) {
		// In Dynamo's newer contract the id has another name; ours reads either.
		body := object{
			"model_name": model, "worker_id": 1, "dp_rank": 0, "sequence_hashes": []int{}, "block_hashes": []int{},
			"isl_tokens": 5000, "effective_prefill_tokens": 5000, "selection_id": id,
		}
		if at == b.picker {
			delete(body, "selection_id")
			body["reservation_id"] = id
		}
		if err := at.Do(t.Context(), http.MethodPost, "/reservations", body, nil); err != nil {
			t.Fatal(err)
		}
	}
	// What is booked while a subscription is on its way is lost: one booking is not enough.
	for from, to := range map[*e2e.Service]*e2e.Service{b.picker: dynamo, dynamo: b.picker} {
		var ids []string
		e2e.Eventually(t, "the replicas hear each other", func() error {
			ids = append(ids, fmt.Sprintf("probe-%p-%d", from, len(ids)))
			book(from, ids[len(ids)-1])
			if all, err := b.loads(to); err != nil || !all[[2]int{1, 0}].Carries() {
				return fmt.Errorf("nothing yet, %w", err)
			}
			return nil
		})
		for _, id := range ids {
			if err := from.Do(t.Context(), http.MethodDelete, "/reservations/"+id, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.idle()
	b.idleAt(dynamo)

	book(dynamo, "elsewhere")
	b.awaitLoad(1, 0, "has what Dynamo booked", func(l e2e.Load) bool { return l.Requests == 1 })
	b.engines[1].speed(t, still)
	r := b.begin(chats, chat(words(90, 100), streamed))
	if r.engine() != "B" {
		t.Errorf("%s answers, which Dynamo has given 5,000 tokens", r.engine())
	}
	for _, s := range []*e2e.Service{b.picker, dynamo} {
		for worker := 1; worker <= 2; worker++ {
			b.awaitLoadAt(s, worker, 0, "has one request", func(l e2e.Load) bool { return l.Requests == 1 && l.Prefill >= 100 })
		}
	}
	b.engines[1].speed(t, hasty)
	r.end(t)
	if err := dynamo.Do(t.Context(), http.MethodDelete, "/reservations/elsewhere", nil, nil); err != nil {
		t.Fatal(err)
	}
	b.idle()
	b.idleAt(dynamo)
}
