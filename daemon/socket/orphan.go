// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package socket

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/wcache/wcache/daemon/peer"
)

// orphaned names another process that listens on a socket whose file and lock were removed,
// so that the file system doesn't show that the path is taken. It finds processes of this
// user that /proc shows, in this mount namespace: in another one the path means another
// file.
func orphaned(path string) (by string, ok bool) {
	inodes := listening(path)
	if len(inodes) == 0 {
		return "", false
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*") // a fixed pattern
	if err != nil {
		return "", false
	}
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil || !inodes[to] {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(link, "/")[2]) // as the pattern says
		if together, known := (peer.Process{PID: pid}).Shares("mnt"); pid != os.Getpid() && together && known {
			return peer.Describe(pid), true
		}
	}
	return "", false
}

// listening gives the sockets that listen on a path, in the form of the links in
// /proc/PID/fd. Each line of /proc/net/unix has Num RefCount Protocol Flags Type St Inode
// Path; flags are __SO_ACCEPTCON of include/uapi/linux/net.h or 0.
func listening(path string) map[string]bool {
	const accepting = "00010000"
	list, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil
	}
	inodes := make(map[string]bool)
	for line := range strings.Lines(string(list)) {
		part := strings.Fields(line)
		if len(part) > 7 && part[3] == accepting && strings.HasSuffix(strings.TrimSuffix(line, "\n"), " "+part[6]+" "+path) {
			inodes[fmt.Sprintf("socket:[%s]", part[6])] = true
		}
	}
	return inodes
}
