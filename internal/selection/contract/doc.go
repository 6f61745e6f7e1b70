// Package contract has the parts of the served contracts that every layer uses: their versions,
// and errors with kinds and texts.
package contract
