// Package replicas runs several replicas of the service as real processes, with
// faulty links between them, and compares what they believe with what they
// answered.
package replicas_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// replica is a process of the service, which may be killed and started again.
type replica struct {
	*e2e.Service
	t    *testing.T
	name string
	gate *gate // in front of its HTTP listener, for the other replicas
}

// get reads a JSON answer.
func (r *replica) get(path string, v any) error {
	if err := r.Do(r.t.Context(), http.MethodGet, path, nil, v); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	return nil
}

// must sends a request that has to be answered with a status.
func (r *replica) must(status int, method, path string, body any) {
	r.t.Helper()
	r.Must(r.t, status, method, path, body, nil)
}

// fleet is replicas, three unless it is said otherwise, each of which follows the others.
type fleet struct {
	t                       *testing.T
	replicas                []*replica
	links                   map[[2]int]*link // by sender and follower; nil without forwarders
	ports, urls, publishers []string         // of the replicas
}

const fleetSize = 3

// options are how a fleet is started.
type options struct {
	// size is the number of replicas, 0: fleetSize; the last ones are not started.
	size, last int
	// direct leaves the forwarders out.
	direct bool
	seed   uint64
	// nats is the URL of the server over which the replicas meet; "": each is told the others.
	// natsOf, if set, has the URLs by replica. mesh: they also meet as without NATS.
	nats   string
	natsOf []string
	mesh   bool
	env    map[string]string
	// args are more arguments of each replica; urls are those of all.
	args func(urls []string, own int) []string
}

func newFleet(t *testing.T, opt options) *fleet {
	t.Helper()
	if opt.size == 0 {
		opt.size = fleetSize
	}
	f := &fleet{t: t}
	for range opt.size {
		port := strconv.Itoa(e2e.FreePort(t))
		f.ports = append(f.ports, port)
		f.replicas = append(f.replicas, &replica{
			t: t, name: fmt.Sprintf("replica %d", len(f.replicas)), gate: newGate(t, "127.0.0.1:"+port),
		})
		f.urls = append(f.urls, "http://127.0.0.1:"+port)
		f.publishers = append(f.publishers, fmt.Sprintf("tcp://127.0.0.1:%d", e2e.FreePort(t)))
	}
	if !opt.direct {
		f.addLinks(f.publishers, opt.seed)
	}
	for i := range f.replicas {
		f.become(i, opt)
	}
	for _, r := range f.replicas[:opt.size-opt.last] {
		r.Run()
	}
	return f
}

// become has a replica started by these options the next time.
func (f *fleet) become(i int, opt options) {
	f.t.Helper()
	r := f.replicas[i]
	command := []string{e2e.Binary(f.t), "--port", f.ports[i], "--advertise-url", r.gate.URL()}
	if opt.nats == "" || opt.mesh {
		var peers []string
		for from, publisher := range f.publishers {
			switch l := f.links[[2]int{from, i}]; {
			case from == i:
			case l != nil:
				peers = append(peers, l.endpoint)
			default:
				peers = append(peers, publisher)
			}
		}
		own := f.publishers[i]
		command = append(command, "--replica-sync-port", own[strings.LastIndexByte(own, ':')+1:], "--replica-sync-peers", strings.Join(peers, ","))
	}
	if opt.nats != "" {
		url := opt.nats
		if opt.natsOf != nil {
			url = opt.natsOf[i]
		}
		command = append(command, "--fleet", url, "--fleet-replica", fmt.Sprintf("r%d", i))
		if opt.mesh {
			command = append(command, "--fleet-bookings", "both")
		}
	}
	if opt.args != nil {
		command = append(command, opt.args(f.urls, i)...)
	}
	r.Service = e2e.New(f.t, e2e.Options{Command: command, Env: opt.env, Address: "127.0.0.1:" + f.ports[i]})
}

func (f *fleet) addLinks(publishers []string, seed uint64) {
	f.t.Helper()
	hub := startHub(f.t)
	f.links = make(map[[2]int]*link)
	for _, ends := range pairs() {
		endpoint := "tcp://127.0.0.1:" + strconv.Itoa(e2e.FreePort(f.t))
		f.links[ends] = newLink(f.t, hub, publishers[ends[0]], endpoint, seed*16+uint64(4*ends[0]+ends[1]))
	}
}

// pairs are the ends of all links, sender and follower.
func pairs() (all [][2]int) {
	for from := range fleetSize {
		for to := range fleetSize {
			if from != to {
				all = append(all, [2]int{from, to})
			}
		}
	}
	return all
}

// sorted are the links, always in the same order.
func (f *fleet) sorted() (all []*link) {
	for _, ends := range pairs() {
		all = append(all, f.links[ends])
	}
	return all
}

// kill ends a replica without warning. What it is sent from now on is not lost.
func (f *fleet) kill(i int) {
	for ends, l := range f.links {
		if ends[1] == i {
			l.deaf.Store(true)
		}
	}
	f.replicas[i].Kill()
}

// restart starts a replica that was killed, at its old addresses, without
// workers.
func (f *fleet) restart(i int) {
	f.t.Helper()
	f.replicas[i].Run()
	for ends, l := range f.links {
		if ends[1] == i {
			l.deaf.Store(false)
		}
	}
}

// isolate shuts a replica off from the others, or ends that.
func (f *fleet) isolate(i int, isolated bool, how fate) {
	f.t.Helper()
	if !isolated {
		how = fate{}
	}
	for ends, l := range f.links {
		if ends[0] == i || ends[1] == i {
			l.become(f.t, how)
		}
	}
	f.replicas[i].gate.setShut(isolated)
}

// heal ends all faults.
func (f *fleet) heal() {
	f.t.Helper()
	for _, l := range f.links {
		l.become(f.t, fate{})
	}
	for _, r := range f.replicas {
		r.gate.setShut(false)
	}
}

// lost is how many messages about bookings were lost so far.
func (f *fleet) lost() (n uint64) {
	for _, l := range f.links {
		n += l.lost.Load()
	}
	return n
}

func (f *fleet) String() string {
	var lost, announcements, duplicated, scattered uint64
	for _, l := range f.links {
		lost += l.lost.Load()
		announcements += l.announcements.Load()
		duplicated += l.duplicated.Load()
		scattered += l.scattered.Load()
	}
	return fmt.Sprintf("lost %d messages and %d announcements, %d duplicated, %d scattered", lost, announcements, duplicated, scattered)
}
