// Package server is the wing of how others reach the service: HTTP, the gateway, who may
// call and how many connections there are. Its packages are below.
package server
