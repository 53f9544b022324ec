// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package stamp

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// MarshalText writes a stamp for people and for [Stamp.UnmarshalText]:
// "size=5 mtime=… ctime=… inode=42 device=254:0 mount=83"; "missing" for the zero Stamp. It
// writes numbers as text because numbers in TOML and JSON lose the upper bits.
func (s Stamp) MarshalText() ([]byte, error) {
	if s == (Stamp{}) {
		return []byte("missing"), nil
	}
	return fmt.Appendf(nil, "size=%d mtime=%s ctime=%s inode=%d device=%d:%d mount=%d", s.Size, moment(s.MTime), moment(s.CTime),
		s.Inode, unix.Major(s.Device), unix.Minor(s.Device), s.Mount), nil
}

func moment(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// UnmarshalText reads the text of MarshalText.
func (s *Stamp) UnmarshalText(text []byte) error {
	*s = Stamp{}
	if string(text) == "missing" {
		return nil
	}
	parts := strings.Split(string(text), " ")
	names := []string{"size", "mtime", "ctime", "inode", "device", "mount"}
	if len(parts) != len(names) {
		return fmt.Errorf("read stamp %q: it does not have %d parts", text, len(names))
	}
	var values [6]string
	for i, name := range names {
		value, ok := strings.CutPrefix(parts[i], name+"=")
		if !ok {
			return fmt.Errorf("read stamp %q: part %d is not %s", text, i+1, name)
		}
		values[i] = value
	}
	var out Stamp
	var err error
	if out.Size, err = strconv.ParseInt(values[0], 10, 64); err != nil {
		return fmt.Errorf("read stamp %q: size: %w", text, err)
	}
	for i, t := range []*int64{&out.MTime, &out.CTime} {
		at, err := time.Parse(time.RFC3339Nano, values[1+i])
		if err != nil {
			return fmt.Errorf("read stamp %q: %s: %w", text, names[1+i], err)
		}
		*t = at.UnixNano()
	}
	for i, n := range map[int]*uint64{3: &out.Inode, 5: &out.Mount} {
		if *n, err = strconv.ParseUint(values[i], 10, 64); err != nil {
			return fmt.Errorf("read stamp %q: %s: %w", text, names[i], err)
		}
	}
	major, minor, _ := strings.Cut(values[4], ":")
	high, err := strconv.ParseUint(major, 10, 32)
	if err != nil {
		return fmt.Errorf("read stamp %q: device: %w", text, err)
	}
	low, err := strconv.ParseUint(minor, 10, 32)
	if err != nil {
		return fmt.Errorf("read stamp %q: device: %w", text, err)
	}
	out.Device = unix.Mkdev(uint32(high), uint32(low))
	*s = out
	return nil
}
