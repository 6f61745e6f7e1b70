//go:build tools

// Package apiserver holds the version of the API server that tests run on.
package apiserver

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
