// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package testmain runs the tests of a package that opens descriptors, and fails if a
// descriptor or a goroutine outlives them.
package testmain

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wcache/wcache/internal/fd"
)

// Run runs the tests and exits. Call it from TestMain and do nothing after it.
func Run(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.fuzz"); f != nil && f.Value.String() != "" {
		os.Exit(m.Run()) // the fuzzing engine keeps pipes and workers of its own
	}
	before := open()
	code := m.Run()
	if code == 0 {
		left := leaks(before)
		for begin := time.Now(); len(left) > 0 && time.Since(begin) < endTime; left = leaks(before) {
			time.Sleep(between)
		}
		for _, what := range left {
			fmt.Fprintln(os.Stderr, "testmain:", what)
			code = 1
		}
	}
	os.Exit(code)
}

// endTime is how long goroutines and descriptors may take to end after the tests.
const endTime = 30 * time.Second

// leaks describes the remaining goroutines, and the descriptors that are new.
func leaks(before map[string]string) (left []string) {
	if err := goleak.Find(); err != nil {
		left = append(left, "goroutines are left: "+err.Error())
	}
	for _, made := range fd.Open() {
		left = append(left, "descriptor is left, made at:\n"+made)
	}
	after := open()
	for _, n := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[n]; !ok {
			left = append(left, fmt.Sprintf("descriptor %s is left: %s", n, after[n]))
		}
	}
	return left
}

// open lists this process's descriptors by number, without those that Go's runtime opens once
// and keeps for its poller.
func open() map[string]string {
	list := make(map[string]string)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return list
	}
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(to, "anon_inode:[event") || strings.HasPrefix(to, "/proc/") && strings.HasSuffix(to, "/fd") {
			continue
		}
		list[e.Name()] = to
	}
	return list
}
