package zmqsock

/*
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
static void trim(void) { malloc_trim(0); }
#else
static void trim(void) {}
#endif
*/
import "C"

import (
	"runtime/debug"
	"time"
)

// A burst of messages leaves memory behind: libzmq keeps up to 1,000 messages
// per socket in malloc's memory, which glibc does not give back by itself, and
// their copies are garbage that the collector, with nothing more to allocate,
// would look at minutes later. So the loop gives both back to the system once
// this much has been received and the sockets have been quiet for a moment, or
// now and then in a stream that never ends.
const (
	trimAfter = 4 << 20 // bytes
	trimQuiet = 100 * time.Millisecond
	trimEvery = 2 * time.Second
)

// trimmer decides when to trim.
type trimmer struct {
	received int // bytes since the last time
	last     time.Time
}

// due reports whether there is anything to give back.
func (t *trimmer) due() bool { return t.received >= trimAfter }

// run trims, if it is due and the loop is quiet or the last time is long ago.
func (t *trimmer) run(quiet bool) {
	if !t.due() || !quiet && time.Since(t.last) < trimEvery {
		return
	}
	C.trim()
	debug.FreeOSMemory()
	t.received, t.last = 0, time.Now()
}
