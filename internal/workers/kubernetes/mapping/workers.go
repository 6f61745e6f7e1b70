package mapping

import (
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/internal/workers/workerid"
	"github.com/select-service/select-service/pkg/catalog"
)

// Worker is a worker that a pod is.
type Worker struct {
	Record catalog.Record
	Port   uint16
	// Reasons says why the worker is incomplete, apart from what its record lacks.
	Reasons []string
}

// PodRanks is how many ranks a pod may have behind all of its target ports together, unless its entry
// gives each port more: so one pod leaves room for the streams of others, whatever it says of itself.
const PodRanks = 64

// Reasons why a pod has no workers. They are labels of metrics.
const (
	ExcludedRole      = "role"      // it encodes
	ExcludedIP        = "bad_ip"    // nobody may connect to its address
	ExcludedDuplicate = "duplicate" // an earlier entry has it
	ExcludedTaken     = "id_taken"  // another owner, or an older pod, has its id
	ExcludedLimit     = "limit"     // there are too many
	ExcludedInvalid   = "invalid"   // its record is refused, or it has none of the target ports
)

// Mapped is what a pod means.
type Mapped struct {
	Workers []Worker
	// Excluded is one of the constants if the pod has no workers, "" otherwise; Why is the text.
	Excluded, Why string
	// Cordoned: the pod's annotation asks for no new requests.
	Cordoned bool
	// Unknown are annotations with the prefix that have no meaning.
	Unknown []string
}

// Map returns the workers of a pod, in the order of the ports, whatever its state is. told
// returns what the engine of a record that asks to be described has said, nil if it has not.
func Map(p *Pod, pool *Pool, e *Entry, s *Settings, told func(r *catalog.Record) *catalog.Description) Mapped {
	a := annotations{pod: p}
	cordoned := a.flag(annotationCordoned)
	m := Mapped{Cordoned: cordoned != nil && *cordoned, Unknown: a.unknown()}
	if why := badIP(p.IP, s.AllowLoopback); why != "" {
		m.Excluded, m.Why = ExcludedIP, fmt.Sprintf("the address %s %s", catalog.Clip(p.IP), why)
		return m
	}
	role, serves := a.role(e)
	if !serves {
		m.Excluded, m.Why = ExcludedRole, "its role is encode"
		return m
	}
	g := given{
		record: e.Worker, model: first(a.text(annotationModel), e.Model),
		events: a.port(annotationEventsPort), replay: a.port(annotationReplayPort), load: a.port(annotationLoadPort), control: a.port(annotationHintPort), peer: a.port(annotationPeerPort),
	}
	g.record.Size = nil
	a.read(&g.record)
	g.record.Role = role
	active := a.activePorts()
	ports := 0
	for _, port := range pool.Ports {
		if active(port) {
			ports++
		}
	}
	g.most = max(PodRanks/max(1, uint32(ports)), value(e.Worker.Size))
	g.size = value(g.record.Size)
	if g.size > g.most {
		a.fault(AnnotationPrefix+"data-parallel-size", "%d ranks are more than %s", g.size, g.mostText())
		g.size = 0
	}
	g.size = first(g.size, value(e.Worker.Size))
	g.record.Size = nil // see setRanks
	for i, port := range pool.Ports {
		if !active(port) {
			continue
		}
		w := g.worker(p, pool, e, s, i, told)
		w.Reasons = slices.Concat(a.faults, w.Reasons)
		m.Workers = append(m.Workers, w)
	}
	return m
}

// given is what a pod's annotations and labels, and its source, say for each of its workers.
type given struct {
	record                              catalog.Record // the fields with catalog.Field.Pods, but for Size
	model                               string
	events, replay, load, control, peer uint16
	size                                uint32 // ranks behind each port, 0: not given
	most                                uint32 // that they may be
}

// worker returns the worker behind the i-th target port. What only its engine can say is left to the
// catalog, but for ranks and endpoints, which depend on one another.
func (g given) worker(p *Pod, pool *Pool, e *Entry, s *Settings, i int, told func(*catalog.Record) *catalog.Description) Worker {
	port := pool.Ports[i]
	name := p.Name
	if name == "" {
		name = net.JoinHostPort(p.IP, strconv.Itoa(int(port)))
	} else {
		if p.Namespace != s.Home {
			name = p.Namespace + "/" + name
		}
		if i > 0 {
			name += ":" + strconv.Itoa(int(port))
		}
	}
	url := e.Scheme + "://" + net.JoinHostPort(p.IP, strconv.Itoa(int(port)))
	w := Worker{Port: port, Record: g.record}
	r := &w.Record
	r.ID, r.Scope = workerid.Of(name), catalog.Scope{Model: first(g.model, catalog.DefaultName), Tenant: e.Tenant}
	r.Endpoint, r.StableRoutingID = &url, some(p.Name)
	said := g.describe(&w, pool, e, told)
	if g.size == 0 && said.Size > g.most {
		w.Reasons = append(w.Reasons, fmt.Sprintf("the engine's %d ranks are more than %s", said.Size, g.mostText()))
	} else {
		g.size = first(g.size, said.Size)
	}
	g.size = first(g.size, 1)
	g.setRanks(r, uint32(i))
	for _, domain := range [...]struct{ name, label string }{{"zone", LabelZone}, {"region", LabelRegion}} {
		if value := p.Labels[domain.label]; value != "" {
			if r.TopologyDomains == nil {
				r.TopologyDomains = make(map[string]string, 2)
			}
			r.TopologyDomains[domain.name] = value
		}
	}
	if r.Publishes() {
		r.KVEvents = nil
		if s.KVEvents {
			g.setEvents(&w, p, e, said)
		}
	}
	r.LoadEndpoint, r.LoadEndpoints = single(g.endpoints(&w, p, e, "load reports", first(g.load, p.Ports[PortLoad], e.KVLoadPort), firstPort(said.LoadEndpoints)))
	if g.peer > 0 {
		at := net.JoinHostPort(p.IP, strconv.Itoa(int(g.peer)))
		r.KVPeerEndpoint = &at
	}
	r.RouterHintSourceControlEndpoints = g.endpoints(&w, p, e, "control endpoint", g.control, 0)
	return w
}

// describe has the engine asked for what is not given, and returns what it has said.
func (g *given) describe(w *Worker, pool *Pool, e *Entry, told func(*catalog.Record) *catalog.Description) *catalog.Description {
	r := &w.Record
	noModel := g.model == ""
	switch {
	case e.Ask && !pool.H2C:
		if noModel || r.BlockSize == nil || r.Adapters == nil || r.TotalKVBlocks == nil {
			r.Describe = &catalog.Describe{Model: noModel}
			if said := told(r); said != nil {
				return said
			}
		}
	case noModel && pool.H2C:
		w.Reasons = append(w.Reasons, "no model is configured, and engines that speak h2c are not asked")
	case noModel:
		w.Reasons = append(w.Reasons, "no model is configured, and engines are not asked")
	}
	return new(catalog.Description)
}

// mostText is most as reasons have it.
func (g *given) mostText() string {
	return fmt.Sprintf("the %d that a pod may have behind each of its target ports: set data_parallel_size of its source", g.most)
}

// setRanks gives the worker of the i-th port its ranks. Frontends behind several ports know
// nothing of one another, so they are not told the ranks of the pod.
func (g *given) setRanks(r *catalog.Record, i uint32) {
	if g.size != 1 || r.Describe != nil { // its engine may not say more than its pod may have
		r.Size = &g.size
	}
	if i == 0 {
		return
	}
	r.StartRank = some(i * g.size)
	if r.RankHeader == nil {
		r.RankHeader = new(catalog.RankNone)
		if g.size > 1 {
			r.RankHeader = new(catalog.RankLocal)
		}
	}
}

// setEvents gives the worker the endpoints of its ranks' events and replays.
func (g *given) setEvents(w *Worker, p *Pod, e *Entry, said *catalog.Description) {
	r := &w.Record
	events, told := first(g.events, p.Ports[PortEvents], e.KVEventsPort), firstPort(said.KVEventsEndpoints)
	if events == 0 && told == 0 {
		events = DefaultEventsPort
	}
	r.KVEventRank = new(catalog.RankOfStream)
	r.KVEventsEndpoint, r.KVEventsEndpoints = single(g.endpoints(w, p, e, "events", events, told))
	replay := first(g.replay, p.Ports[PortReplay], e.KVReplayPort)
	r.ReplayEndpoint, r.ReplayEndpoints = single(g.endpoints(w, p, e, "replays", replay, firstPort(said.ReplayEndpoints)))
}

// endpoints returns the ZMQ endpoint of each rank of the worker from the port of the pod's first
// rank, else from that of the worker's first rank; nil if both are 0. what names them.
func (g *given) endpoints(w *Worker, p *Pod, e *Entry, what string, ofPod, ofWorker uint16) map[uint32]string {
	r := &w.Record
	stride := max(1, uint32(e.PortStride))
	base, from := uint32(ofPod), uint32(0)
	if base == 0 {
		base, from = uint32(ofWorker), r.FirstRank()
	}
	if base == 0 {
		return nil
	}
	all := make(map[uint32]string, g.size)
	for dp := r.FirstRank(); dp < r.FirstRank()+g.size; dp++ {
		port := uint64(base) + uint64(dp-from)*uint64(stride)
		if port > math.MaxUint16 {
			w.Reasons = append(w.Reasons, fmt.Sprintf("the port of the %s of rank %d would be %d", what, dp, port))
			return nil
		}
		all[dp] = "tcp://" + net.JoinHostPort(p.IP, strconv.FormatUint(port, 10))
	}
	return all
}

// single returns the only endpoint of a map, or the map.
func single(all map[uint32]string) (*string, map[uint32]string) {
	if len(all) != 1 {
		return nil, all
	}
	for _, endpoint := range all {
		return &endpoint, nil
	}
	return nil, nil
}

// first returns the first value that is given.
func first[T comparable](values ...T) T {
	var none T
	for _, v := range values {
		if v != none {
			return v
		}
	}
	return none
}

// value returns what a field has, its zero value if it is unset.
func value[T any](field *T) (v T) {
	if field != nil {
		v = *field
	}
	return v
}

// some returns a value that is given, else nil.
func some[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}

// trimmedList splits a list with commas.
func trimmedList(text string) []string {
	items := []string{}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// firstPort returns the port of the lowest rank's endpoint, 0 if there is none.
func firstPort(byRank map[uint32]string) uint16 {
	if len(byRank) == 0 {
		return 0
	}
	at := byRank[slices.Min(slices.Collect(maps.Keys(byRank)))]
	n, _ := strconv.ParseUint(at[strings.LastIndexByte(at, ':')+1:], 10, 16)
	return uint16(n)
}
