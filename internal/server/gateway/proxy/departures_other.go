//go:build !linux

package proxy

import "syscall"

// hasLeft cannot tell here.
func hasLeft(syscall.RawConn) bool { return false }
