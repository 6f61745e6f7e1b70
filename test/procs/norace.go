//go:build !race

package procs

var buildFlags []string
