// Package api holds the description of the HTTP API, OpenAPI 3.1: one document
// for each contract that a server can be started with.
package api

import _ "embed" // the documents

//go:generate go run ./internal/generate

// The documents are generated from source.yaml, which has what the contracts
// have in common once.
var (
	//go:embed openapi.yaml
	document13 []byte
	//go:embed openapi-1.6.yaml
	document16 []byte
)

// Document returns the description of a server whose unprefixed paths have the
// given contract, "1.3" or "1.6", as YAML; nil for another one. The caller must
// not change it.
func Document(contract string) []byte {
	switch contract {
	case "1.3":
		return document13
	case "1.6":
		return document16
	}
	return nil
}
