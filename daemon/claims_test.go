// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wcache/wcache/internal/testmain"
)

// A daemon that lost its sockets serves on: T3. Status says what it can't mend.
func TestServerKeepsItsSockets(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	request := getState(t, key(t, "llama-tp1r0"))
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
	for range 2 {
		for _, path := range []string{i.target, i.draft, i.control} {
			do(t, os.Remove(path), os.Remove(path+".lock"))
		}
		testmain.Eventually(t, "the sockets are there again", func() bool {
			for _, path := range []string{i.target, i.draft, i.control} {
				c, err := net.Dial("unix", path)
				if err != nil {
					return false
				}
				_ = c.Close()
			}
			return true
		})
		wantAnswer(t, engineAsk(t, i.target, request), "ok")
		if s := i.status(t); len(s.Entries) != 1 || len(s.Problems) != 0 {
			t.Errorf("status: %+v", s)
		}
	}
	do(t, os.Chmod(filepath.Dir(i.target), 0o755))
	want := fmt.Sprintf("keep socket %q: check directory %s: mode 0755 lets others in: chmod 700 it", i.target, filepath.Dir(i.target))
	testmain.Eventually(t, "status says what is wrong", func() bool {
		p := i.status(t).Problems
		return len(p) == 3 && p[0] == want
	})
	do(t, os.Chmod(filepath.Dir(i.target), 0o700))
	testmain.Eventually(t, "status is well", func() bool { return len(i.status(t).Problems) == 0 })
	if n := strings.Count(i.log.String(), "socket was removed, and is made anew"); n != 6 {
		t.Errorf("the log says it %d times", n)
	}
}
