package kubernetes

import (
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// Noticed is how long a server that hangs takes to be noticed at most.
const Noticed = pingAfter + pingTimeout

// DialPinging is Dial with other times of pings.
func DialPinging(kubeconfig string, after, timeout time.Duration) (*Client, error) {
	return dial(kubeconfig, after, timeout)
}

// Connect returns a client whose requests go through a transport, without a network, for bubbles of time.
func Connect(transport http.RoundTripper) (*Client, error) {
	reads := &bounded{next: transport}
	return newClient(&rest.Config{Host: "http://api.test", QPS: -1}, &http.Client{Transport: reads}, reads)
}
