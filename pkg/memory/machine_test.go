package memory

import (
	"testing"
	"testing/fstest"
)

func TestFindAvailable(t *testing.T) {
	const meminfo = "MemTotal:        1048576 kB\nMemFree: 5 kB\n" // 1 GiB
	for name, tc := range map[string]struct {
		files map[string]string
		want  Available
	}{
		"nothing to read": {nil, Available{2 << 30, "machine"}},
		"no cgroup":       {map[string]string{"proc/meminfo": meminfo}, Available{1 << 30, "machine"}},
		"v2": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000\n",
		}, Available{1000, "cgroup"}},
		"v2 without a limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n",
		}, Available{1 << 30, "machine"}},
		"v2 in a container that shows the host's path": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/memory.max": "2000\n",
		}, Available{2000, "cgroup"}},
		"v1": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "7:cpu,cpuacct:/\n4:memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "3000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
		}, Available{3000, "cgroup"}},
		"v1 without a limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, Available{1 << 30, "machine"}},
	} {
		root := fstest.MapFS{}
		for path, text := range tc.files {
			root[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := findAvailable(root); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
