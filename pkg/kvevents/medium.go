package kvevents

import (
	"strings"

	"github.com/select-service/select-service/pkg/indexer"
)

// ParseMedium returns the upper-case name of a storage medium and its tier; ok
// is false for a medium that no tier is known for. The absent or empty medium
// is the device. The names are those of dynamo-kv-router 1.6.1, plus vLLM's FS
// and OBJ; case does not matter (decision K4).
func ParseMedium(medium []byte) (name string, tier indexer.Tier, ok bool) {
	switch string(medium) { // what nearly all events have
	case "GPU":
		return "GPU", indexer.Device, true
	case "CPU":
		return "CPU", indexer.Host, true
	}
	var upper [16]byte // longer than every known name
	if len(medium) > len(upper) {
		return strings.ToUpper(string(medium)), 0, false
	}
	for i, c := range medium {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	for i := range media {
		if media[i].name == string(upper[:len(medium)]) {
			return media[i].name, media[i].tier, true
		}
	}
	return strings.ToUpper(string(medium)), 0, false
}

var media = [...]struct {
	name string
	tier indexer.Tier
}{
	{"GPU", indexer.Device},
	{"CPU", indexer.Host},
	{"", indexer.Device},
	{"CPU_PINNED", indexer.Host},
	{"DEVICE", indexer.Device},
	{"CPU_TIER1", indexer.Host},
	{"CPU_TIER2", indexer.Disk},
	{"DISK", indexer.Disk},
	{"NVME", indexer.Disk},
	{"STORAGE", indexer.Disk},
	{"FS", indexer.Disk},
	{"OBJ", indexer.Disk},
	{"EXTERNAL", indexer.External},
	{"NETWORK", indexer.External},
	{"REMOTE", indexer.External},
	{"SHARED", indexer.External},
}
