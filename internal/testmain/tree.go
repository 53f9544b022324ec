// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package testmain

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Tree lists what is below a folder, a line with the mode each.
func Tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		st, err := e.Info()
		if err == nil {
			fmt.Fprintf(&b, "%s %v\n", strings.TrimPrefix(path, dir+"/"), st.Mode())
		}
		return nil // gone meanwhile
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
