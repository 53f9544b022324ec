// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package host

import (
	"testing"
	"testing/fstest"
)

// FuzzAvailable reads what the kernel says of memory and control groups, of which users
// choose the names.
func FuzzAvailable(f *testing.F) {
	f.Add("MemTotal: 9 kB\nMemAvailable:  8 kB\n", "0::/user.slice/x.service\n", "4096\n", "1024\n", "active_file 10\ninactive_file 20\n")
	f.Add("MemAvailable: 8", "0::/../..", "max", "", "")
	f.Fuzz(func(t *testing.T, meminfo, group, most, used, stat string) {
		root := fstest.MapFS{
			"proc/meminfo":     {Data: []byte(meminfo)},
			"proc/self/cgroup": {Data: []byte(group)},
		}
		for _, dir := range []string{"sys/fs/cgroup", "sys/fs/cgroup/user.slice", "sys/fs/cgroup/user.slice/x.service"} {
			root[dir+"/memory.max"], root[dir+"/memory.current"] = &fstest.MapFile{Data: []byte(most)}, &fstest.MapFile{Data: []byte(used)}
			root[dir+"/memory.stat"] = &fstest.MapFile{Data: []byte(stat)}
		}
		if n, err := available(root); err != nil && n != 0 {
			t.Errorf("got %d and %v", n, err)
		}
	})
}
