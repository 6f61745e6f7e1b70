package kubernetes

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// Connect returns a client whose requests go through a transport, without a network.
func Connect(transport http.RoundTripper) (*Client, error) {
	silence()
	reads := &bounded{next: transport}
	return newClient(&rest.Config{Host: "http://api.test", QPS: -1}, &http.Client{Transport: reads}, reads)
}
