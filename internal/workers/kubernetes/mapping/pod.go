package mapping

import (
	"maps"
	"net/netip"
	"strings"
	"time"
)

// Pod is what discovery reads of a pod, or of an endpoint of an EndpointSlice.
type Pod struct {
	Namespace string
	Name      string // "" of an endpoint without a pod
	UID       string
	Created   time.Time
	Deleted   time.Time // the deletionTimestamp; zero: none
	// Terminating: it is going away. An endpoint has no Deleted.
	Terminating bool
	Ended       bool // its phase is Succeeded or Failed
	Ready       bool
	IP          string
	Restarts    int32 // of all containers
	// Ports are the named ports of the containers: PortEvents, PortReplay, PortLoad.
	Ports map[string]uint16
	// Labels and Annotations are those that Keep has kept.
	Labels, Annotations map[string]string
}

// The names of container ports that have a meaning.
const (
	PortEvents = "kv-events"
	PortReplay = "kv-replay"
	PortLoad   = "kv-load"
)

// Labels of a pod that the API server copies from its node.
const (
	LabelZone   = "topology.kubernetes.io/zone"
	LabelRegion = "topology.kubernetes.io/region"
)

// activePorts are the annotations that name the target ports that a pod really has, the first
// one counts.
var activePorts = [...]string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}

// Key identifies the pod within its source, and names it in texts: its namespace and name, or its address.
func (p *Pod) Key() string {
	if p.Name == "" {
		return p.IP
	}
	return p.Namespace + "/" + p.Name
}

// Keep tells which labels and annotations of pods are read.
type Keep struct {
	Labels map[string]bool
}

// NewKeep returns what the pods of an entry are read for.
func NewKeep(e *Entry) Keep {
	k := Keep{Labels: map[string]bool{LabelZone: true, LabelRegion: true}}
	for _, l := range e.RoleLabels {
		k.Labels[l] = true
	}
	return k
}

// LabelsOf returns the labels to keep, nil if there are none.
func (k Keep) LabelsOf(all map[string]string) map[string]string {
	return filter(all, func(key string) bool { return k.Labels[key] })
}

// AnnotationsOf returns the annotations to keep, nil if there are none. Values are cut above
// maxAnnotation, which mapping then refuses.
func (k Keep) AnnotationsOf(all map[string]string) map[string]string {
	kept := filter(all, func(key string) bool {
		return strings.HasPrefix(key, AnnotationPrefix) || key == activePorts[0] || key == activePorts[1]
	})
	for key, value := range kept {
		if len(value) > maxAnnotation {
			kept[key] = strings.Clone(value[:maxAnnotation+1])
		}
	}
	return kept
}

func filter(all map[string]string, keep func(string) bool) map[string]string {
	var kept map[string]string
	for key, value := range all {
		if keep(key) {
			if kept == nil {
				kept = make(map[string]string)
			}
			kept[key] = value
		}
	}
	return kept
}

// Same reports whether two states of a pod mean the same to discovery.
func (p *Pod) Same(o *Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.UID == o.UID &&
		p.Deleted.Equal(o.Deleted) && p.Terminating == o.Terminating && p.Ended == o.Ended && p.Ready == o.Ready &&
		p.IP == o.IP && p.Restarts == o.Restarts && p.Created.Equal(o.Created) &&
		maps.Equal(p.Ports, o.Ports) && maps.Equal(p.Labels, o.Labels) && maps.Equal(p.Annotations, o.Annotations)
}

// badIP returns why discovery does not connect to an address, "" if it does.
func badIP(text string, allowLoopback bool) string {
	ip, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return "is no address"
	case ip.Zone() != "":
		return "has a zone"
	}
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback() && allowLoopback:
		return ""
	case ip.IsLoopback():
		return "is a loopback address"
	case ip.IsLinkLocalUnicast():
		return "is a link-local address"
	case ip.IsMulticast():
		return "is a multicast address"
	case ip.IsUnspecified():
		return "is the unspecified address"
	}
	return ""
}
