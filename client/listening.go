// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Listening reports whether a process listens on a socket, without connecting to it, which
// would start a service. The path may be spelled differently from the one that the process
// bound.
func Listening(socket string) bool {
	st, err := os.Stat(socket)
	if err != nil || st.Mode().Type() != fs.ModeSocket {
		return false
	}
	return slices.ContainsFunc(listened(socket), func(p string) bool {
		other, err := os.Stat(p)
		return err == nil && os.SameFile(st, other)
	})
}

// Removed reports whether a process listens on a socket whose file or folder was removed,
// so that no client can connect to it any more.
func Removed(socket string) bool {
	_, err := os.Lstat(socket)
	return err != nil && len(listened(socket)) > 0
}

// listened gives the paths of listening sockets that are, or could be, another spelling of
// a path: another way to the same folder. It sees the sockets of its own network
// namespace, in /proc/net/unix, which shows the names that were given to bind.
func listened(socket string) []string {
	list, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil
	}
	want := real(socket)
	exists := want != "" && pathExists(want)
	var found []string
	for _, path := range accepting(string(list)) {
		if filepath.Base(path) == filepath.Base(want) && (exists || real(path) == want) {
			found = append(found, path)
		}
	}
	return found
}

// accepting gives the absolute paths of listening sockets in the text of /proc/net/unix.
// Other users choose those names; malformed lines are skipped.
func accepting(text string) []string {
	// Num RefCount Protocol Flags Type St Inode Path; flags are __SO_ACCEPTCON of
	// include/uapi/linux/net.h or nothing.
	const flag = "00010000"
	var paths []string
	for line := range strings.Lines(text) {
		part := strings.Fields(line)
		if len(part) < 8 || part[3] != flag {
			continue
		}
		// The path is the rest of the line, even if it contains spaces.
		_, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "+part[6]+" ")
		if filepath.IsAbs(path) {
			paths = append(paths, path)
		}
	}
	return paths
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// real is a path without links, as far as it exists; "" if there is none.
func real(path string) string {
	if path == "" {
		return ""
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	for rest := ""; ; path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest) {
		if to, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Join(to, rest)
		}
		if path == "/" {
			return filepath.Join(path, rest)
		}
	}
}
