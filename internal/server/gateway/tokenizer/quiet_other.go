//go:build !unix

package tokenizer

import "net"

// isQuiet cannot look here.
func isQuiet(net.Conn) bool { return true }
