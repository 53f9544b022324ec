// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// mountinfo is the kernel's list of mounts, see proc(5).
const mountinfo = "/proc/self/mountinfo"

// maxMountinfo is the limit of that list in bytes. A machine with 10,000 containers
// has some ten million.
const maxMountinfo = 64 << 20

// mounts are the mounts by the kernel's number of each.
type mounts map[string]mount

type mount struct {
	point string // an absolute path
	what  string // the file system and which of its folders is mounted
}

func readMounts() (mounts, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	b, err := io.ReadAll(io.LimitReader(f, maxMountinfo+1))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	if len(b) > maxMountinfo {
		return nil, fmt.Errorf("read mounts: over the limit of %d bytes", maxMountinfo)
	}
	return parseMounts(string(b)), nil
}

// parseMounts reads lines of "number parent device folder point options…". It skips
// lines of another form.
func parseMounts(text string) mounts {
	m := make(mounts)
	for line := range strings.Lines(text) {
		fields := strings.SplitN(line, " ", 6)
		if len(fields) < 6 {
			continue
		}
		m[fields[0]] = mount{point: unescape(fields[4]), what: fields[2] + " " + fields[3]}
	}
	return m
}

// unescape decodes the octal numbers that stand for space, tab, newline and backslash.
func unescape(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, `\`)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = after
		if len(text) >= 3 {
			if c, err := strconv.ParseUint(text[:3], 8, 8); err == nil {
				b.WriteByte(byte(c))
				text = text[3:]
				continue
			}
		}
		b.WriteByte('\\')
	}
}

// changed gives the paths at which something was mounted or unmounted since m.
func (m mounts) changed(now mounts) []string {
	var points []string
	for id, was := range m {
		if is, ok := now[id]; !ok || is != was {
			points = append(points, was.point)
		}
	}
	for id, is := range now {
		if was, ok := m[id]; !ok || is != was {
			points = append(points, is.point)
		}
	}
	return points
}

// touches reports whether one of two paths lies at or below the other: a mount there can
// change what the other path leads to.
func touches(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return a == b || a == "/" || strings.HasPrefix(b, a) && b[len(a)] == '/'
}
