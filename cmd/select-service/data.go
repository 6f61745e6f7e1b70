package main

import (
	"os/signal"
	"syscall"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/statefile"
)

// openData locks the directory for the state on disk, nil if there is none. A file
// that may not grow any more is an error of its write, and not the end of the process.
func openData(conf config.Data) (*statefile.Dir, error) {
	if conf.Dir == "" {
		return nil, nil
	}
	signal.Ignore(syscall.SIGXFSZ)
	return statefile.OpenDir(conf.Dir)
}
