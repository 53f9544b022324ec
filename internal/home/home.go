// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package home finds a user's home directory.
package home

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
)

// Env is an environment in which HOME is an absolute path: the variable's, else that of the
// user database, as in Python and the shell. HOME is empty if neither is known, for example for
// a uid of a container that isn't in /etc/passwd. Then the caller must not read or write files
// of a home directory: a relative path would lead into the working directory. The result is
// safe for concurrent use if env is.
func Env(env func(string) string) func(string) string {
	home := sync.OnceValue(func() string {
		if dir := env("HOME"); filepath.IsAbs(dir) {
			return dir
		}
		u, err := user.LookupId(strconv.Itoa(os.Getuid()))
		if err == nil && filepath.IsAbs(u.HomeDir) {
			return u.HomeDir
		}
		return ""
	})
	return func(name string) string {
		if name == "HOME" {
			return home()
		}
		return env(name)
	}
}
