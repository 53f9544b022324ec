// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzAccepting reads a list in which every process has written its own names.
func FuzzAccepting(f *testing.F) {
	f.Add("Num       RefCount Protocol Flags    Type St Inode Path\n" +
		"ffff8881: 00000002 00000000 00010000 0001 01 12345 /run/user/1000/vllm_weight_cache/0.sock\n" +
		"ffff8882: 00000003 00000000 00000000 0001 03 12346 /run/x.sock\n" +
		"ffff8883: 00000002 00000000 00010000 0001 01 12347 @abstract\n" +
		"ffff8884: 00000002 00000000 00010000 0001 01 12348 /tmp/a b\tc \n")
	f.Add("a b c 00010000 e f g  g /x\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range accepting(text) {
			if !filepath.IsAbs(path) || !strings.Contains(text, path) || strings.Contains(path, "\n") {
				t.Errorf("path %q", path)
			}
		}
	})
}
