// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"io"
	"os"
	"runtime/debug"
	"time"
)

// version is set by the linker; a build without it says what Go knows.
var version string

// app is one run of the command.
type app struct {
	in       *os.File // nil: nobody types
	out, err io.Writer
	flush    func() // has what was written to err reach people; nil: it has
	env      func(string) string
	sysroot  string        // "/" but in tests: holds the driver's part of /proc
	isRoot   bool          // the user is root, whom the units don't serve
	patience time.Duration // with an instance that says nothing, 0: the client's
	json     bool
	quiet    bool
	gpu      string
	socket   string
}

// stdout is standard output, with the first error of writing there: half of an
// answer must not look like a whole one.
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

// WriteString is the other way by which a file is written.
func (o *stdout) WriteString(s string) (int, error) { return o.Write([]byte(s)) }

// ReadFrom is the third.
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
