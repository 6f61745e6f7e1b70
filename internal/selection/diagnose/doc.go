// Package diagnose finds out why a prompt matches or does not, for both contracts: which owners
// hold each block, where the chain of each owner breaks and why, and under which other identity the
// prompt would match. It walks indexes that its callers give it: Scopes those of the selection
// service, internal/conductor that of the registered publishers.
package diagnose
