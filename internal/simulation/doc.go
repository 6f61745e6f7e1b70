// Package simulation is the wing of what stands in for engines and their users: a model of an
// engine, and requests from a seed or a trace. Its packages are below.
package simulation
