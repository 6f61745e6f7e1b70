// Package clientnet tells which addresses count as one client where connections,
// requests or failures are bounded by address.
package clientnet
