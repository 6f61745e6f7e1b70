//go:build tools

// Package crds holds the versions of the definitions of InferencePools and of the Gateway API that
// tests run with; the modules' folders have them as files.
package crds

import (
	_ "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	_ "sigs.k8s.io/gateway-api/apis/v1"
)
