// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package home says where a user's home directory is.
package home

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
)

// Env is an environment whose HOME is an absolute path wherever one is known: what
// the variable says, else what the user database says, as for Python and the shell. It
// is empty where none is, as for a user number of a container that no file has. Then
// nothing may be read or written that would lie in a home directory: a relative path
// leads to whatever directory somebody happens to be in. The result is safe for
// concurrent use if env is.
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
