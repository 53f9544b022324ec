// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// ClearLeft removes temporary files beside path, which a process leaves if it is killed
// while it writes path, and gives their number. Such a file has the name of path with a dot
// before it and a number after it. If another process with the same state folder writes at
// this moment, it has to write again.
func ClearLeft(path string) (n int, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("clear what is left of %s: %w", filepath.Base(path), err)
	}
	ours := regexp.MustCompile(`^\.` + regexp.QuoteMeta(filepath.Base(path)) + `[0-9]{1,19}$`)
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !ours.MatchString(e.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(filepath.Dir(path), e.Name())); err != nil {
			errs = append(errs, err)
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}
