package kubernetes

import (
	"fmt"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
)

// inferencePool is what discovery reads of an InferencePool.
type inferencePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              inferencePoolSpec `json:"spec"`
}

type inferencePoolSpec struct {
	AppProtocol string                `json:"appProtocol"`
	Selector    inferencePoolSelector `json:"selector"`
	TargetPorts []inferencePoolPort   `json:"targetPorts"`
}

type inferencePoolSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

type inferencePoolPort struct {
	Number int64 `json:"number"`
}

type inferencePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []inferencePool `json:"items"`
}

// DeepCopyObject implements runtime.Object. What the pool points to is not changed.
func (p *inferencePool) DeepCopyObject() runtime.Object { c := *p; return &c }

// DeepCopyObject implements runtime.Object.
func (l *inferencePoolList) DeepCopyObject() runtime.Object { c := *l; return &c }

// protocolH2C is the appProtocol of engines that speak HTTP/2 in plain text.
const protocolH2C = "kubernetes.io/h2c"

// targets returns the selector and the ports of a pool; the error says why it is not valid.
func (p *inferencePool) targets() (map[string]string, mapping.Pool, error) {
	if len(p.Spec.Selector.MatchLabels) == 0 {
		return nil, mapping.Pool{}, fmt.Errorf("it has no selector.matchLabels")
	}
	if n := len(p.Spec.TargetPorts); n == 0 || n > mapping.MaxTargetPorts {
		return nil, mapping.Pool{}, fmt.Errorf("it has %d targetPorts, not 1 to %d", n, mapping.MaxTargetPorts)
	}
	pool := mapping.Pool{H2C: p.Spec.AppProtocol == protocolH2C}
	for _, port := range p.Spec.TargetPorts {
		if port.Number < 1 || port.Number > math.MaxUint16 {
			return nil, mapping.Pool{}, fmt.Errorf("its target port %d is none", port.Number)
		}
		pool.Ports = append(pool.Ports, uint16(port.Number))
	}
	return p.Spec.Selector.MatchLabels, pool, nil
}

// object is what is kept of an object of the API.
type object[T any] struct {
	key     string // namespace/name
	version uint64 // the resource version, 0 if it is no number
	value   T
	// tooLarge: the object is larger than is accepted, so that its state does not count.
	tooLarge bool
}

func newObject[T any](meta *metav1.ObjectMeta, size int, value T) object[T] {
	return object[T]{meta.Namespace + "/" + meta.Name, versionOf(meta), value, size > maxEvent}
}

// each converts the items of a list.
func each[I, T any](items []I, convert func(*I) object[T]) []object[T] {
	all := make([]object[T], len(items))
	for i := range items {
		all[i] = convert(&items[i])
	}
	return all
}

// pods keeps what discovery reads of pods.
func pods(keep mapping.Keep) func(runtime.Object) []object[*mapping.Pod] {
	one := func(p *corev1.Pod) object[*mapping.Pod] { return newObject(&p.ObjectMeta, p.Size(), podOf(p, keep)) }
	return func(o runtime.Object) []object[*mapping.Pod] {
		switch o := o.(type) {
		case *corev1.PodList:
			return each(o.Items, one)
		case *corev1.Pod:
			return []object[*mapping.Pod]{one(o)}
		}
		return nil
	}
}

func podOf(p *corev1.Pod, keep mapping.Keep) *mapping.Pod {
	out := &mapping.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Created: p.CreationTimestamp.Time,
		IP: p.Status.PodIP, Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Labels: keep.LabelsOf(p.Labels), Annotations: keep.AnnotationsOf(p.Annotations),
	}
	if p.DeletionTimestamp != nil {
		out.Deleted = p.DeletionTimestamp.Time
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	for i := range p.Status.ContainerStatuses {
		out.Restarts += p.Status.ContainerStatuses[i].RestartCount
	}
	named := func(containers []corev1.Container) {
		for i := range containers {
			for _, port := range containers[i].Ports {
				switch port.Name {
				case mapping.PortEvents, mapping.PortReplay, mapping.PortLoad:
					if _, twice := out.Ports[port.Name]; !twice && port.ContainerPort > 0 && port.ContainerPort <= math.MaxUint16 {
						if out.Ports == nil {
							out.Ports = make(map[string]uint16, 2)
						}
						out.Ports[port.Name] = uint16(port.ContainerPort)
					}
				}
			}
		}
	}
	named(p.Spec.Containers)
	named(p.Spec.InitContainers) // sidecars
	return out
}

// pools keeps what discovery reads of InferencePools.
func pools(o runtime.Object) []object[*inferencePool] {
	one := func(p *inferencePool) object[*inferencePool] {
		return newObject(&p.ObjectMeta, 0, &inferencePool{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, DeletionTimestamp: p.DeletionTimestamp}, Spec: p.Spec,
		})
	}
	switch o := o.(type) {
	case *inferencePoolList:
		return each(o.Items, one)
	case *inferencePool:
		return []object[*inferencePool]{one(o)}
	}
	return nil
}

// endpointSlices keeps what discovery reads of EndpointSlices.
func endpointSlices(o runtime.Object) []object[*endpointSlice] {
	one := func(s *discoveryv1.EndpointSlice) object[*endpointSlice] {
		return newObject(&s.ObjectMeta, s.Size(), sliceOf(s))
	}
	switch o := o.(type) {
	case *discoveryv1.EndpointSliceList:
		return each(o.Items, one)
	case *discoveryv1.EndpointSlice:
		return []object[*endpointSlice]{one(o)}
	}
	return nil
}

// versionOf returns the resource version of an object, 0 if it is no number.
func versionOf(o metav1.Object) uint64 {
	n, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return n
}
