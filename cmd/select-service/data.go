package main

import (
	"os/signal"
	"syscall"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/node/statefile"
)

// openData locks the directory of the state on disk; it returns nil if none is configured. It
// also makes the file-size limit an error of a write instead of a signal that ends the process.
func openData(conf config.Data) (*statefile.Dir, error) {
	if conf.Dir == "" {
		return nil, nil
	}
	signal.Ignore(syscall.SIGXFSZ)
	return statefile.OpenDir(conf.Dir)
}
