package memory

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Available is the memory that the process can use, and where the figure comes from.
type Available struct {
	Bytes  int64
	Source string // "cgroup" or "machine"
}

// Default is the budget in bytes if none is configured: three quarters. The rest is for memory
// that the budget does not count, such as the kernel's page tables and buffers, which count
// against a cgroup too.
func (a Available) Default() int64 { return a.Bytes / 4 * 3 }

// FindAvailable returns the memory limit of the process's cgroup (v2 or v1) and its parents, or
// the machine's memory if that is smaller.
func FindAvailable() Available { return findAvailable(os.DirFS("/")) }

func findAvailable(root fs.FS) Available {
	a := Available{Bytes: machineBytes(root), Source: "machine"}
	if limit, ok := cgroupLimit(root); ok && (a.Bytes == 0 || limit < a.Bytes) {
		a = Available{Bytes: limit, Source: "cgroup"}
	}
	if a.Bytes == 0 {
		a.Bytes = 2 << 30 // /proc cannot be read
	}
	return a
}

// machineBytes is MemTotal of /proc/meminfo, 0 if unknown.
func machineBytes(root fs.FS) int64 {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) > 1 && string(f[0]) == "MemTotal:" {
			kib, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// cgroupLimit returns the lowest memory limit from the process's cgroup up to the root, in
// bytes. Inside a container the path in /proc/self/cgroup is often the host's, whose folders
// are not mounted there; then the mount itself is the process's cgroup.
func cgroupLimit(root fs.FS) (limit int64, ok bool) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3) // id:controllers:path
		if len(parts) != 3 {
			continue
		}
		var mount, file string
		switch parts[1] {
		case "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case "memory":
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			text, err := fs.ReadFile(root, path.Join(mount, at, file))
			n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
			if err == nil && bad == nil && n > 0 && (!ok || n < limit) {
				limit, ok = n, true
			}
			if at == "/" {
				break
			}
		}
	}
	return limit, ok
}
