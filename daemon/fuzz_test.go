// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"os"
	"strings"
	"testing"
)

// FuzzTorch reads what an engine's torch says of itself.
func FuzzTorch(f *testing.F) {
	for _, name := range []string{"maps"} {
		b, err := os.ReadFile("/proc/self/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 2000)])
	}
	f.Add([]byte("7f00-7f01 r-xp 0 fd:01 5 /opt/venv/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so\n"))
	f.Add([]byte("from typing import Optional\n__version__ = '2.14.0+cu130'\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if dir := torchFolder(text); dir != "" && (dir[0] != '/' || strings.Contains(dir, "\n")) {
			t.Errorf("folder %q", dir)
		}
		if v := torchVersion(text); strings.ContainsAny(v, "'") {
			t.Errorf("version %q", v)
		}
	})
}
