//go:build tools

// Package istio holds the version of the control plane that tests run.
package istio

import _ "istio.io/istio/pilot/cmd/pilot-discovery"
