package kubetest

import (
	"os"
	"testing"
	"time"
)

// API is an API server with pods, InferencePools and EndpointSlices that a test changes: a Server,
// or a real one.
type API interface {
	// Kubeconfig writes a kubeconfig of an account that may read these resources in the namespace
	// llm, and returns its path.
	Kubeconfig(t testing.TB) string

	// Put creates or replaces an object of a resource such as "pods". A pod with another UID than
	// the last one of its name replaces that. A deletionTimestamp begins a graceful end.
	Put(resource string, o Object)
	// Delete removes an object at once.
	Delete(resource, namespace, name string)
	// Get returns an object as the server has it, nil if there is none.
	Get(resource, namespace, name string) Object

	// Kill ends the server, Start starts it again with all that it had; Start returns when it
	// answers.
	Kill()
	Start()
	// Freeze stops the server without closing its connections, until Thaw.
	Freeze()
	Thaw()
	// Allow grants or takes the right to read. Watches that have begun go on.
	Allow(allowed bool)
	// Install adds or removes the definition of InferencePools, and with it all of them.
	Install(present bool)
}

// BinariesEnv names a folder with kube-apiserver and etcd.
const BinariesEnv = "TEST_KUBE_API"

// Any returns the API server of a test that both kinds pass: a real one where BinariesEnv is set,
// else a Server, beside other tests.
func Any(t *testing.T) API {
	if os.Getenv(BinariesEnv) == "" {
		t.Parallel()
		return New(t)
	}
	return NewCluster(t)
}

// UIDOf returns the UID of a pod, "" if there is none.
func UIDOf(api API, namespace, name string) string {
	o := api.Get("pods", namespace, name)
	if o == nil {
		return ""
	}
	uid, _ := o["metadata"].(Object)["uid"].(string)
	return uid
}

// graceOf returns how long a pod may still take to end, if it has a deletionTimestamp.
func graceOf(o Object) (grace time.Duration, ends bool) {
	text, ends := o["metadata"].(Object)["deletionTimestamp"].(string)
	if !ends {
		return 0, false
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err) // a mistake of the test
	}
	return time.Until(at), true
}
