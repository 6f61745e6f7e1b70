// Package certs holds the certificates of the process: those that its listeners present and
// require, and those that it presents to and requires of the replicas that it reads from. They
// are PEM files that may be replaced at any time.
package certs
