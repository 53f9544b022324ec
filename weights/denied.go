// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wcache/wcache/stamp"
)

// denied turns a refusal of the file system to read a file into an [*Unusable]: it
// lasts until the owner has allowed access. Other errors are returned as they are.
func denied(path string, err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	at := forbidden(path)
	info, e := stamp.Of(at)
	if e != nil {
		//diag files UID
		// The file may not be read, and the folders above it hide its owner. Ask the owner of the
		// directory to let this user read it, or fetch a copy.
		return &Unusable{Path: path, Reason: fmt.Sprintf("may not be read by uid %d", os.Geteuid()), Err: err}
	}
	kind, bits := "the file", "r"
	if info.Mode.IsDir() {
		kind, bits = "the folder", "rx"
	}
	//diag files UID THING FILE UID MODE BITS
	// The file, or a folder above it, belongs to a user who doesn't let others read it, as happens
	// in a cache that users share. Ask its owner to run the `chmod` of the message.
	return &Unusable{Path: path, Err: err, Reason: fmt.Sprintf(
		"may not be read by uid %d: %s %q belongs to uid %d and has mode %04o; let its owner run: chmod a+%s",
		os.Geteuid(), kind, at, info.UID, info.Mode.Perm(), bits)}
}

// forbidden is the file that a path leads to, or the first folder on the way that this
// user may not enter.
func forbidden(path string) string {
	const links = 40 // as many as the kernel follows
	for range links {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	for at := path; ; {
		up := filepath.Dir(at)
		if _, err := os.Lstat(at); err == nil || up == at {
			return path
		}
		if _, err := os.Stat(up); err == nil {
			return up
		}
		at = up
	}
}
