// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"io"
	"os"
	"runtime/debug"
	"time"
)

// version is set by the linker; a build without it uses Go's build information.
var version string

// app is one run of the command.
type app struct {
	in       *os.File // nil: no keyboard input
	out, err io.Writer
	flush    func() // flushes what was written to err; nil: nothing is buffered
	env      func(string) string
	sysroot  string        // "/" except in tests: holds the driver's part of /proc
	isRoot   bool          // the user is root; the units don't run for root
	patience time.Duration // how long to wait for a silent instance, 0: the client's default
	json     bool
	quiet    bool
	gpu      string
	socket   string
}

// stdout is standard output and keeps the first error of writing there: half of an
// answer must not look like a complete one.
type stdout struct {
	*os.File
	err error
}

func (o *stdout) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// WriteString is the second way to write to a file.
func (o *stdout) WriteString(s string) (int, error) { return o.Write([]byte(s)) }

// ReadFrom is the third way.
func (o *stdout) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{o}, r)
}

func (a *app) envOr(name, otherwise string) string {
	if v := a.env(name); v != "" {
		return v
	}
	return otherwise
}

// ownVersion is the version of this program.
func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
