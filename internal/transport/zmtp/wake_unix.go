//go:build unix

package zmtp

import "syscall"

// wakeAt makes the kernel wake the reader of a descriptor once so many bytes have come, or as many
// as it can hold. Where it cannot, it wakes for each.
func wakeAt(fd uintptr, bytes int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
}
