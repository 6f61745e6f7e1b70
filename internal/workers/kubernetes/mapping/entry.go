// Package mapping says what a pod means: which workers it is, with which ids, roles and ports, and
// why one of them is incomplete or excluded. Pure functions.
package mapping

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Kind is what an entry names as the source of its pods.
type Kind string

// The kinds of sources.
const (
	InferencePool Kind = "InferencePool" // an InferencePool of the Gateway API Inference Extension
	Service       Kind = "Service"       // the EndpointSlices of a Service
	Selector      Kind = "Selector"      // a label selector
)

// Entry is one source of pods, with what the operator says of their engines. 0, "" and nil are
// "not given".
type Entry struct {
	Kind Kind
	// Name is that of the InferencePool or Service, or the text of the selector.
	Name      string
	Namespace string
	// TargetPorts are the ports of the engines' HTTP servers. A pool names its own, a Service has
	// them in its slices.
	TargetPorts []uint16

	Model  string // asked of the engine if not given
	Tenant string // never taken from a pod

	// Worker has what is said of each worker: the fields with catalog.Field.Pods. Its Size is the number of
	// ranks behind each target port.
	Worker catalog.Record

	KVEventsPort uint16 // of rank 0
	KVReplayPort uint16
	KVLoadPort   uint16
	PortStride   uint16 // between the ports of neighbouring ranks; 0 is 1

	// RoleLabels are the labels that may say a pod's role, the first one that it has counts; the role of
	// Worker fixes that of all pods.
	RoleLabels []string

	Scheme string // of the engines' HTTP servers: http or https
	// Ask: engines are asked for what is not given.
	Ask bool
	// NotReadyGrace is how long a pod that is not ready, or has left its pool, keeps its blocks
	// and bookings; 0: it loses them at once.
	NotReadyGrace time.Duration
}

// The labels that say a pod's role if an entry names none.
const (
	RoleLabelLLMD   = "llm-d.ai/role"
	RoleLabelDynamo = "nvidia.com/role"
)

// DefaultGrace is the NotReadyGrace of entries that give none.
const DefaultGrace = 5 * time.Minute

// DefaultEventsPort is where vLLM and SGLang publish KV events if nothing says otherwise.
const DefaultEventsPort = 5557

// Settings are those of all entries.
type Settings struct {
	// Home is the namespace whose pods have ids of their name alone.
	Home string
	// KVEvents: engines publish events.
	KVEvents bool
	// AllowLoopback: pods may have addresses of the loopback, for tests.
	AllowLoopback bool
}

// AnnotationPrefix begins the names of the annotations of pods that are read.
const AnnotationPrefix = "select-service/"

// MaxTargetPorts is how many target ports a source may have.
const MaxTargetPorts = 8

// Pool is what an entry's source says of itself.
type Pool struct {
	// Ports are the target ports, 1 to MaxTargetPorts.
	Ports []uint16
	// H2C: the engines speak HTTP/2 in plain text, so they are not asked.
	H2C bool
}
