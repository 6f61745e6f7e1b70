//go:build !unix

package http1

// lookNow cannot look here.
func lookNow(uintptr) (quiet bool) { return true }
