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

// clearLeft removes what a process that was killed while it wrote a file has left beside
// it, and gives how many. Files that are replaced as a whole are first written under their
// name with a dot before it and a number behind it. A process of the same state that writes
// one in this moment has to write it again.
func clearLeft(path string) (n int, err error) {
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
