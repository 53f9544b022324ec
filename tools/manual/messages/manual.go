// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package messages

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Manual gives the pages, which are files below root, as they are to be: filled with the
// messages of the sources. Its error joins all that is wrong with comments and marks.
func Manual(root string, pages []string) (filled map[string]string, err error) {
	entries, faults, err := Read(root)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range faults {
		errs = append(errs, errors.New(f))
	}
	var sections []string
	filled = make(map[string]string)
	for _, path := range pages {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		sections = append(sections, Sections(string(b))...)
		filled[path], err = Fill(string(b), entries)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	for _, e := range entries {
		if !slices.Contains(sections, e.Section) {
			errs = append(errs, fmt.Errorf("%s: no page has a section %q", e.At, e.Section))
		}
	}
	return filled, errors.Join(errs...)
}
