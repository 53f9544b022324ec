// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// available is MemAvailable of /proc/meminfo, or less if a control group above this process
// leaves less (cgroup v2; it ignores v1 hierarchies). Page cache that is charged to a group
// counts as free, as in MemAvailable.
func available(root fs.FS) (int64, error) {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read free memory: %w", err)
	}
	kib, ok := field(string(b), "MemAvailable:")
	if !ok {
		return 0, errors.New("read free memory: /proc/meminfo has no MemAvailable")
	}
	free := kib << 10
	b, err = fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return free, nil // a kernel without control groups
	}
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir := path.Join("sys/fs/cgroup", group); ; dir = path.Dir(dir) {
			if left, ok := groupFree(root, dir); ok {
				free = min(free, left)
			}
			if dir == "sys/fs/cgroup" || dir == "." {
				break
			}
		}
	}
	return free, nil
}

// groupFree is how many bytes a control group may still use; false if it has no limit.
func groupFree(root fs.FS, dir string) (int64, bool) {
	limit, ok := number(root, dir+"/memory.max") // "max" means no limit
	if !ok {
		return 0, false
	}
	used, ok := number(root, dir+"/memory.current")
	if !ok {
		return 0, false
	}
	if b, err := fs.ReadFile(root, dir+"/memory.stat"); err == nil {
		for _, name := range []string{"active_file", "inactive_file"} {
			n, _ := field(string(b), name)
			used -= n
		}
	}
	return max(limit-max(used, 0), 0), true
}

func number(root fs.FS, name string) (int64, bool) {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// field finds the number after a name at the start of a line.
func field(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
