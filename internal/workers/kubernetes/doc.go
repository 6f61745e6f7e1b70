// Package kubernetes finds workers in Kubernetes: the pods of InferencePools, of label selectors
// and behind Services. It lists and watches with client-go's requests and decoders, and reads only.
//
// Kubernetes is the truth only when it answers: an API server that is away, denies or errs never
// removes a worker. A pod that is not ready, or has left its pool, keeps its blocks and bookings
// for a while; table has the rules. Package mapping says which workers a pod is.
package kubernetes
