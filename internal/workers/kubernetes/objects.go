package kubernetes

import (
	"fmt"
	"math"

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

// object is what is kept of an object of the API while it goes through client-go.
type object[T any] struct {
	metav1.TypeMeta
	metav1.ObjectMeta // name, namespace and version only
	value             T
	// tooLarge: the object is larger than is accepted, and has no value.
	tooLarge bool
}

// DeepCopyObject implements runtime.Object.
func (o *object[T]) DeepCopyObject() runtime.Object { c := *o; return &c }

// objects is a page of a LIST.
type objects[T any] struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []object[T]
}

// DeepCopyObject implements runtime.Object.
func (o *objects[T]) DeepCopyObject() runtime.Object { c := *o; return &c }

// pageOf converts the items of a page.
func pageOf[I, T any](meta *metav1.ListMeta, items []I, convert func(*I) *object[T]) *objects[T] {
	page := &objects[T]{ListMeta: *meta, Items: make([]object[T], 0, len(items))}
	for i := range items {
		page.Items = append(page.Items, *convert(&items[i]))
	}
	return page
}

func newObject[T any](meta *metav1.ObjectMeta, size int, value func() T) *object[T] {
	o := &object[T]{ObjectMeta: metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, ResourceVersion: meta.ResourceVersion,
	}}
	if o.tooLarge = size > maxEvent; !o.tooLarge {
		o.value = value()
	}
	return o
}

// podObject keeps what discovery reads of a pod.
func podObject(keep mapping.Keep) func(*corev1.Pod) *object[*mapping.Pod] {
	return func(p *corev1.Pod) *object[*mapping.Pod] {
		return newObject(&p.ObjectMeta, p.Size(), func() *mapping.Pod { return podOf(p, keep) })
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

func poolObject(p *inferencePool) *object[*inferencePool] {
	return newObject(&p.ObjectMeta, 0, func() *inferencePool {
		return &inferencePool{ObjectMeta: metav1.ObjectMeta{Name: p.Name, DeletionTimestamp: p.DeletionTimestamp}, Spec: p.Spec}
	})
}

func sliceObject(s *discoveryv1.EndpointSlice) *object[*endpointSlice] {
	return newObject(&s.ObjectMeta, s.Size(), func() *endpointSlice { return sliceOf(s) })
}
