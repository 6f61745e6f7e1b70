package kubernetes

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
)

// endpointSlice is what discovery reads of an EndpointSlice.
type endpointSlice struct {
	key       string // namespace/name
	version   uint64 // the resource version, 0 if it is no number
	created   time.Time
	ipv6      bool
	fqdn      bool
	ports     map[string]uint16
	order     []string // of the names in ports
	endpoints []endpoint
}

// endpoint is a pod of a slice, or an address without one.
type endpoint struct {
	address              string
	namespace, name, uid string // of the pod
	zone                 string
	serving, terminating bool
}

func sliceOf(s *discoveryv1.EndpointSlice) *endpointSlice {
	out := &endpointSlice{
		key: s.Namespace + "/" + s.Name, version: versionOf(s), created: s.CreationTimestamp.Time,
		ipv6: s.AddressType == discoveryv1.AddressTypeIPv6, fqdn: s.AddressType == discoveryv1.AddressTypeFQDN,
		ports: make(map[string]uint16, len(s.Ports)),
	}
	for _, p := range s.Ports {
		if p.Port == nil || *p.Port <= 0 || *p.Port > math.MaxUint16 {
			continue
		}
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if _, twice := out.ports[name]; !twice {
			out.order = append(out.order, name)
			out.ports[name] = uint16(*p.Port)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		ep := endpoint{address: e.Addresses[0]}
		ready := e.Conditions.Ready == nil || *e.Conditions.Ready
		ep.serving = ready
		if e.Conditions.Serving != nil {
			ep.serving = *e.Conditions.Serving
		}
		ep.terminating = e.Conditions.Terminating != nil && *e.Conditions.Terminating
		if e.Zone != nil {
			ep.zone = *e.Zone
		}
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" {
			ep.namespace, ep.name, ep.uid = ref.Namespace, ref.Name, string(ref.UID)
			if ep.namespace == "" {
				ep.namespace = s.Namespace
			}
		} else {
			ep.namespace = s.Namespace
		}
		out.endpoints = append(out.endpoints, ep)
	}
	return out
}

// slicesByKey are the slices of a Service.
type slicesByKey map[string]*endpointSlice

// sink returns what keeps the slices that a follower finds. change runs each change.
func (all slicesByKey) sink(change func(do func())) sink[*endpointSlice] {
	return sink[*endpointSlice]{
		replace: func(listed []*endpointSlice, keep map[string]bool) {
			change(func() {
				maps.DeleteFunc(all, func(key string, _ *endpointSlice) bool { return !keep[key] })
				for _, s := range listed {
					all[s.key] = s
				}
			})
		},
		set:    func(s *endpointSlice) { change(func() { all[s.key] = s }) },
		remove: func(s *endpointSlice) { change(func() { delete(all, s.key) }) },
	}
}

// newSlices returns a follower of the slices of a Service.
func (d *Discovery) newSlices(namespace, service string, to sink[*endpointSlice], changed func()) *follower[*endpointSlice] {
	return (&follower[*endpointSlice]{
		client: d.client.slices, resource: "endpointslices", group: discoveryv1.GroupName, namespace: namespace,
		labels: labels.Set{discoveryv1.LabelServiceName: service}.String(),
		list:   func() apiList { return new(discoveryv1.EndpointSliceList) }, convert: endpointSlices,
		sink: to, counts: d.counts, changed: changed,
	}).start(time.Now())
}

// portHTTP is the name of the port of a Service where the engines' HTTP servers are.
const portHTTP = "http"

// target returns the port of the engines' HTTP servers: the one named http, else the first that
// has another meaning to nobody; 0 if there is none.
func (s *endpointSlice) target() uint16 {
	if port := s.ports[portHTTP]; port != 0 {
		return port
	}
	for _, name := range s.order {
		if name != mapping.PortEvents && name != mapping.PortReplay && name != mapping.PortLoad {
			return s.ports[name]
		}
	}
	return 0
}

// namedPorts returns the ports of events, replays and load reports.
func (s *endpointSlice) namedPorts() map[string]uint16 {
	var named map[string]uint16
	for _, name := range []string{mapping.PortEvents, mapping.PortReplay, mapping.PortLoad} {
		if port := s.ports[name]; port != 0 {
			if named == nil {
				named = make(map[string]uint16, 2)
			}
			named[name] = port
		}
	}
	return named
}

// endpointsOf returns the endpoints of slices as pods. One that is in two slices is taken from
// the newer. family6 tells which addresses count.
func endpointsOf(all slicesByKey, family6 bool) map[string]sliced {
	ordered := slices.SortedFunc(maps.Values(all), func(a, b *endpointSlice) int {
		return cmp.Or(cmp.Compare(a.version, b.version), a.created.Compare(b.created), strings.Compare(a.key, b.key))
	})
	out := make(map[string]sliced)
	for _, s := range ordered {
		if s.fqdn || s.ipv6 != family6 {
			continue
		}
		for _, e := range s.endpoints {
			p := &mapping.Pod{
				Namespace: e.namespace, Name: e.name, UID: e.uid, Created: s.created, IP: e.address,
				Ready: e.serving && !e.terminating, Terminating: e.terminating, Ports: s.namedPorts(),
			}
			if e.zone != "" {
				p.Labels = map[string]string{mapping.LabelZone: e.zone}
			}
			out[p.Key()] = sliced{p, s.target()}
		}
	}
	return out
}

// sliced is an endpoint with the target port of its slice.
type sliced struct {
	pod    *mapping.Pod
	target uint16 // 0: none
}
