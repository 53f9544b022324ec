// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package host

import (
	"testing"
	"testing/fstest"
)

func TestAvailable(t *testing.T) {
	const meminfo = "MemTotal:       24684092 kB\nMemFree:        100 kB\nMemAvailable:   1000 kB\n"
	const whole = 1000 << 10
	tests := []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"no control groups", map[string]string{"proc/meminfo": meminfo}, whole},
		{"version 1 only", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "4:memory:/user.slice\n",
		}, whole},
		{"no limit", map[string]string{
			"proc/meminfo":                     meminfo,
			"proc/self/cgroup":                 "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":     "max\n",
			"sys/fs/cgroup/a/b/memory.current": "4096\n",
		}, whole},
		{"own limit, cache is free", map[string]string{
			"proc/meminfo":                     meminfo,
			"proc/self/cgroup":                 "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":     "500000\n",
			"sys/fs/cgroup/a/b/memory.current": "400000\n",
			"sys/fs/cgroup/a/b/memory.stat":    "anon 100000\nfile 300000\ninactive_file 150000\nactive_file 50000\n",
		}, 300000},
		{"limit of the parent", map[string]string{
			"proc/meminfo":                     meminfo,
			"proc/self/cgroup":                 "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max":       "500000\n",
			"sys/fs/cgroup/a/memory.current":   "450000\n",
			"sys/fs/cgroup/a/b/memory.max":     "max\n",
			"sys/fs/cgroup/a/b/memory.current": "1\n",
		}, 50000},
		{"a container: its group is the root that it sees", map[string]string{
			"proc/meminfo":                 meminfo,
			"proc/self/cgroup":             "0::/\n",
			"sys/fs/cgroup/memory.max":     "70000\n",
			"sys/fs/cgroup/memory.current": "80000\n",
		}, 0},
		{"a group outside of what is seen", map[string]string{
			"proc/meminfo":                 meminfo,
			"proc/self/cgroup":             "0::/../../other\n",
			"sys/fs/cgroup/memory.max":     "70000\n",
			"sys/fs/cgroup/memory.current": "0\n",
		}, whole},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range test.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, err := available(root)
			if err != nil || got != test.want {
				t.Errorf("available = %d, %v; want %d", got, err, test.want)
			}
		})
	}
	if n, err := available(fstest.MapFS{}); err == nil {
		t.Errorf("available without /proc = %d, want an error", n)
	}
}
